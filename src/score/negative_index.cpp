#include "score/wraps.h"

#include <unordered_map>
#include <unordered_set>

#include "score/program.h"
#include "score/substitute.h"

namespace foveal::scoring {
namespace {

using NodePtr = std::shared_ptr<const Node>;

/// fn(node) for the node and all that it is made of, each once.
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

/// The integer choices within the indices of reads.
std::unordered_set<const Node*> choices_of_indices(const Expr& expr) {
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

/// What a condition is at every pair of the box that the mask keeps: {0, 1} where that is not known.
Interval truth(const NodePtr& condition, const Expr& mask, const std::vector<Param>& params, const Box& box) {
  const ScoreProgram program = compile({.score_mod = to_real(Expr(condition)), .mask = mask, .params = params, .wants_gradient = {}});
  std::vector<Interval> values(program.forward.code.size());
  IntervalProgram(program.forward, program.mask).evaluate(box, ReadRanges(), values);
  return values[static_cast<std::size_t>(program.forward.outputs.front())];
}

Expr settle(const Expr& expr, const std::unordered_set<const Node*>& choices, const Expr& mask, const std::vector<Param>& params,
            const Box& box) {
  std::unordered_map<const Node*, NodePtr> settled;
  for (const Node* choice : choices) {
    const Interval known = truth(choice->args[0], mask, params, box);
    if (known.low == known.high) settled.emplace(choice, choice->args[known.low != 0 ? 1 : 2]);
  }
  if (settled.empty()) return expr;
  return replace(expr, [&](const Node& node) {
    const auto found = settled.find(&node);
    return found == settled.end() ? nullptr : found->second;
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
  return settle(wrapped, {wrapped.node().get()}, {}, params, {any, any, any, any, any, any});
}

Expr settle_indices(const Expr& expr, const Expr& mask, const std::vector<Param>& params, const Box& box) {
  if (!expr.present()) return expr;
  Expr found = expr;
  while (true) {  // a choice that is settled may settle those around it
    const std::unordered_set<const Node*> choices = choices_of_indices(found);
    if (choices.empty()) return found;
    const Expr next = settle(found, choices, mask, params, box);
    if (next.node() == found.node()) return found;
    found = next;
  }
}

}  // namespace foveal::scoring
