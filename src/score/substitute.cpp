#include "score/substitute.h"

#include <algorithm>
#include <unordered_map>

namespace foveal::scoring {

Expr replace(const Expr& expr, const std::function<std::shared_ptr<const Node>(const Node&)>& replacement) {
  using NodePtr = std::shared_ptr<const Node>;
  if (!expr.present()) return expr;
  std::unordered_map<const Node*, NodePtr> done;
  std::vector<NodePtr> open{expr.node()};  // no recursion: expressions may be deep
  while (!open.empty()) {
    const NodePtr node = open.back();
    if (done.count(node.get()) > 0) {
      open.pop_back();
      continue;
    }
    if (NodePtr other = replacement(*node)) {
      done.emplace(node.get(), std::move(other));
      open.pop_back();
      continue;
    }
    const std::size_t before = open.size();
    for (const NodePtr& arg : node->args)
      if (done.count(arg.get()) == 0) open.push_back(arg);
    if (open.size() > before) continue;
    open.pop_back();
    std::vector<NodePtr> args;
    for (const NodePtr& arg : node->args) args.push_back(done.at(arg.get()));
    if (args == node->args) {
      done.emplace(node.get(), node);
      continue;
    }
    auto copy = std::make_shared<Node>(node->op, node->type, std::move(args));
    copy->real = node->real, copy->integer = node->integer, copy->param = node->param;
    done.emplace(node.get(), std::move(copy));
  }
  return Expr(done.at(expr.node().get()));
}

Expr substitute(const Expr& expr, const std::vector<std::pair<Op, Expr>>& symbols) {
  if (symbols.empty()) return expr;
  return replace(expr, [&](const Node& node) {
    const auto found = std::find_if(symbols.begin(), symbols.end(), [&](const auto& symbol) { return symbol.first == node.op; });
    return found == symbols.end() ? nullptr : found->second.node();
  });
}

}  // namespace foveal::scoring
