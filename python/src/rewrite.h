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

/// The expression with nodes replaced by replacement(node, new operands), unless that is absent.
template <class Replacement>
Expr rewritten(const Expr& expr, Replacement replacement) {
  std::unordered_map<const scoring::Node*, Expr> made;
  for (const scoring::Node* node : operands_first(expr)) {
    std::vector<Expr> args;
    for (const auto& arg : node->args) args.push_back(made.at(arg.get()));
    Expr found = replacement(*node, args);
    made[node] = found.present() ? std::move(found) : copy_of(*node, args);
  }
  return expr.present() ? made.at(expr.node().get()) : Expr();
}

}  // namespace foveal::python
