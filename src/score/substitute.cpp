#include "score/substitute.h"

#include <algorithm>
#include <unordered_map>

namespace foveal::scoring {

Expr substitute(const Expr& expr, const std::vector<std::pair<Op, Expr>>& symbols) {
  using NodePtr = std::shared_ptr<const Node>;
  if (!expr.present() || symbols.empty()) return expr;
  std::unordered_map<const Node*, NodePtr> done;
  std::vector<NodePtr> open{expr.node()};  // no recursion: expressions may be deep
  while (!open.empty()) {
    const NodePtr node = open.back();
    if (done.count(node.get()) > 0) {
      open.pop_back();
      continue;
    }
    const std::size_t before = open.size();
    for (const NodePtr& arg : node->args)
      if (done.count(arg.get()) == 0) open.push_back(arg);
    if (open.size() > before) continue;
    open.pop_back();
    const auto replaced = std::find_if(symbols.begin(), symbols.end(), [&](const auto& symbol) { return symbol.first == node->op; });
    if (replaced != symbols.end()) {
      done.emplace(node.get(), replaced->second.node());
      continue;
    }
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

}  // namespace foveal::scoring
