#pragma once
// Walks over the nodes of an expression.
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "score/node.h"

namespace foveal::python {

/// Every node once, operands before users. Iterative: expressions may be deep.
inline std::vector<const scoring::Node*> operands_first(const Expr& expr) {
  std::vector<const scoring::Node*> order;
  std::unordered_map<const scoring::Node*, bool> done;
  std::vector<const scoring::Node*> open;
  if (expr.present()) open.push_back(expr.node().get());
  while (!open.empty()) {
    const scoring::Node* node = open.back();
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

/// The same operation on other operands.
inline Expr copy_of(const scoring::Node& node, const std::vector<Expr>& args) {
  auto copy = std::make_shared<scoring::Node>(node.op, node.type);
  copy->real = node.real, copy->integer = node.integer, copy->param = node.param;
  for (const Expr& arg : args) copy->args.push_back(arg.node());
  return Expr(std::move(copy));
}

/// The expression with nodes replaced by replacement(node, new operands), unless that is absent. What has no part in it stays the same node.
template <class Replacement>
Expr rewritten(const Expr& expr, Replacement replacement) {
  if (!expr.present()) return Expr();
  std::unordered_map<const scoring::Node*, Expr> made;
  std::unordered_map<const scoring::Node*, Expr> own{{expr.node().get(), expr}};
  const std::vector<const scoring::Node*> order = operands_first(expr);
  for (const scoring::Node* node : order)
    for (const auto& arg : node->args) own.try_emplace(arg.get(), Expr(arg));
  for (const scoring::Node* node : order) {
    std::vector<Expr> args;
    bool same = true;
    for (const auto& arg : node->args) {
      args.push_back(made.at(arg.get()));
      same = same && args.back().node() == arg;
    }
    Expr found = replacement(*node, args);
    made[node] = found.present() ? std::move(found) : same ? own.at(node) : copy_of(*node, args);
  }
  return made.at(expr.node().get());
}

}  // namespace foveal::python
