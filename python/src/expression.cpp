#include "expression.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "score/node.h"

namespace foveal::python {
namespace {

using scoring::Node;
using scoring::Op;

/// Every node once, operands before what uses them. Without recursion: expressions may be deep.
std::vector<const Node*> operands_first(const Expr& expr) {
  std::vector<const Node*> order;
  std::unordered_map<const Node*, bool> done;
  std::vector<const Node*> open;
  if (expr.present()) open.push_back(expr.node().get());
  while (!open.empty()) {
    const Node* node = open.back();
    const auto [it, is_new] = done.try_emplace(node, false);
    if (is_new) {
      for (const auto& arg : node->args) open.push_back(arg.get());
      continue;
    }
    open.pop_back();
    if (it->second) continue;
    it->second = true;
    order.push_back(node);
  }
  return order;
}

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
  std::unordered_map<const Node*, Expr> made;
  for (const Node* node : operands_first(expr)) {
    std::vector<Expr> args;
    for (const auto& arg : node->args) args.push_back(made.at(arg.get()));
    const auto copies = node->param == nullptr ? folded.end() : folded.find(node->param->name);
    if (copies != folded.end()) {
      if (copies->second.shape().size() == args.size())
        args.front() = symbols::batch;
      else
        args.insert(args.begin(), floor_div(symbols::batch, Expr(batch)));
      made[node] = copies->second.read(std::move(args));
    } else if (node->op == Op::batch) {
      made[node] = symbols::batch % Expr(batch);
    } else {
      auto copy = std::make_shared<Node>(node->op, node->type);
      copy->real = node->real, copy->integer = node->integer, copy->param = node->param;
      for (const Expr& arg : args) copy->args.push_back(arg.node());
      made[node] = Expr(std::move(copy));
    }
  }
  return expr.present() ? made.at(expr.node().get()) : Expr();
}

std::set<std::string> params_of(const Expr& expr) {
  std::set<std::string> names;
  for (const Node* node : operands_first(expr))
    if (node->param != nullptr) names.insert(node->param->name);
  return names;
}

bool reads_by_batch(const Expr& expr, const std::string& param) {
  const std::vector<const Node*> nodes = operands_first(expr);
  return std::all_of(nodes.begin(), nodes.end(), [&](const Node* node) {
    return node->param == nullptr || node->param->name != param || (!node->args.empty() && node->args.front()->op == Op::batch);
  });
}

}  // namespace foveal::python
