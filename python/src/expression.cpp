#include "expression.h"

#include <ranges>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "rewrite.h"

namespace foveal::python {
namespace {

using scoring::Node;
using scoring::Op;

/// "batch" or "head" for these symbols, else "".
std::string symbol_of(const Node& node) { return node.op == Op::batch ? "batch" : node.op == Op::head ? "head" : ""; }

template <class T>
void append(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

std::string structure_of(const Expr& expr) {
  std::string text;
  std::unordered_map<const Node*, std::uint32_t> position;
  for (const Node* node : operands_first(expr)) {
    position.emplace(node, static_cast<std::uint32_t>(position.size()));
    append(text, node->op);
    append(text, node->type);
    append(text, node->real);
    append(text, node->integer);
    append(text, static_cast<std::uint32_t>(node->args.size()));
    for (const auto& arg : node->args) append(text, position.at(arg.get()));
    if (node->param == nullptr) continue;
    text += node->param->name;
    append(text, '\0');
    append(text, node->param->type);
    for (const std::int64_t extent : node->param->shape) append(text, extent);
  }
  return text;
}

Expr fold_batch(const Expr& expr, std::int64_t batch, const std::map<std::string, Param>& folded) {
  return rewritten(expr, [&](const Node& node, std::vector<Expr> args) -> Expr {
    if (node.op == Op::batch) return symbols::batch % Expr(batch);
    const auto copies = node.param == nullptr ? folded.end() : folded.find(node.param->name);
    if (copies == folded.end()) return Expr();
    if (copies->second.shape().size() == args.size())
      args.front() = symbols::batch;
    else
      args.insert(args.begin(), floor_div(symbols::batch, Expr(batch)));
    return copies->second.read(std::move(args));
  });
}

Expr of_shard(const Expr& expr, const std::map<std::string, Param>& origins, const std::map<std::string, Param>& shards) {
  return rewritten(expr, [&](const Node& node, std::vector<Expr> args) -> Expr {
    const std::string symbol = symbol_of(node);
    if (const auto origin = origins.find(symbol); !symbol.empty() && origin != origins.end())
      return (node.op == Op::batch ? symbols::batch : symbols::head) + origin->second.read({});
    const auto shard = node.param == nullptr ? shards.end() : shards.find(node.param->name);
    if (shard == shards.end()) return Expr();
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (shard->second.shape()[i] == node.param->shape[i]) continue;
      args[i] = node.args[i]->op == Op::batch ? symbols::batch : symbols::head;
    }
    return shard->second.read(std::move(args));
  });
}

std::set<std::string> params_of(const Expr& expr) {
  std::set<std::string> names;
  for (const Node* node : operands_first(expr))
    if (node->param != nullptr) names.insert(node->param->name);
  return names;
}

std::set<std::string> differentiable_params(const Expr& expr) {
  std::set<std::string> names;
  const std::vector<const Node*> nodes = operands_first(expr);
  std::unordered_set<const Node*> reached{nodes.back()};
  for (const Node* node : nodes | std::views::reverse) {
    if (!reached.contains(node) || node->op == Op::stop_gradient) continue;
    if (node->param != nullptr) names.insert(node->param->name);
    for (const auto& arg : node->args)
      if (arg->type == Type::real) reached.insert(arg.get());
  }
  return names;
}

std::vector<std::string> index_symbols(const std::vector<Expr>& exprs, const std::string& param) {
  std::vector<std::string> found;
  bool is_first = true;
  for (const Expr& expr : exprs) {
    for (const Node* node : operands_first(expr)) {
      if (node->param == nullptr || node->param->name != param) continue;
      if (is_first) found.assign(node->args.size(), "");
      for (std::size_t i = 0; i < node->args.size(); ++i) {
        const std::string symbol = symbol_of(*node->args[i]);
        found[i] = is_first || found[i] == symbol ? symbol : "";
      }
      is_first = false;
    }
  }
  return found;
}

}  // namespace foveal::python
