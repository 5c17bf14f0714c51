#include "score/negative_index.h"

#include <unordered_map>
#include <unordered_set>

#include "score/program.h"
#include "score/substitute.h"

namespace foveal::scoring {
namespace {

using NodePtr = std::shared_ptr<const Node>;

/// fn(node) for every node below, once.
template <class Fn>
void walk(std::vector<const Node*> open, Fn fn) {
  std::unordered_set<const Node*> seen;
  while (!open.empty()) {
    const Node* const node = open.back();
    open.pop_back();
    if (!seen.insert(node).second) continue;
    fn(*node);
    for (const NodePtr& arg : node->args) open.push_back(arg.get());
  }
}

/// Integer `where` nodes inside the indices of reads.
std::unordered_set<const Node*> selects_in_indices(const Expr& expr) {
  std::vector<const Node*> indices;
  walk({expr.node().get()}, [&](const Node& node) {
    if (node.op == Op::read)
      for (const NodePtr& index : node.args) indices.push_back(index.get());
  });
  std::unordered_set<const Node*> found;
  walk(indices, [&](const Node& node) {
    if (node.op == Op::select && node.type == Type::integer) found.insert(&node);
  });
  return found;
}

/// Bounds of a condition over the pairs of the box that the mask keeps.
Interval truth(const NodePtr& condition, const Expr& mask, const std::vector<Param>& params, const Box& box) {
  const ScoreProgram program = compile({.score_mod = to_real(Expr(condition)), .mask = mask, .params = params, .wants_gradient = {}});
  return evaluate(program.forward, box, ReadRanges(), program.mask)[program.forward.outputs.front()];
}

/// Replaces the selects whose condition is known.
Expr resolve(const Expr& expr, const std::unordered_set<const Node*>& selects, const Expr& mask, const std::vector<Param>& params,
             const Box& box) {
  std::unordered_map<const Node*, NodePtr> resolved;
  for (const Node* select : selects) {
    const Interval known = truth(select->args[0], mask, params, box);
    if (known.low == known.high) resolved.emplace(select, select->args[known.low != 0 ? 1 : 2]);
  }
  if (resolved.empty()) return expr;
  return replace(expr, [&](const Node& node) {
    const auto found = resolved.find(&node);
    return found == resolved.end() ? nullptr : found->second;
  });
}

}  // namespace

Expr wrapped_index(const Expr& index, std::int64_t size) {
  const Expr wrapped = where(index < 0, index + size, index);
  std::vector<Param> params;
  walk({index.node().get()}, [&](const Node& node) {
    if (node.op == Op::read) params.emplace_back(node.param->name, node.param->shape, node.param->type);
  });
  std::unordered_set<std::string> names;
  std::erase_if(params, [&](const Param& param) { return !names.insert(param.name()).second; });
  constexpr Interval any{0, 2147483647.0};
  return resolve(wrapped, {wrapped.node().get()}, {}, params, {any, any, any, any, any, any});
}

Expr simplify_indices(const Expr& expr, const Expr& mask, const std::vector<Param>& params, const Box& box) {
  if (!expr.present()) return expr;
  Expr simplified = expr;
  while (true) {  // one that is resolved may decide those around it
    const Expr next = resolve(simplified, selects_in_indices(simplified), mask, params, box);
    if (next.node() == simplified.node()) return simplified;
    simplified = next;
  }
}

}  // namespace foveal::scoring
