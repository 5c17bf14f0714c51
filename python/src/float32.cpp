#include "float32.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "rewrite.h"
#include "score/discrete.h"
#include "score/rounding.h"

namespace foveal::python {
namespace {

using scoring::Node;
using scoring::Op;
using Nodes = std::unordered_set<const Node*>;

/// The nodes that depend on the score: these are inexact anyway.
Nodes of_score(const std::vector<const Node*>& order) {
  Nodes found;
  for (const Node* node : order) {
    const auto is_one = [&found](const auto& arg) { return found.contains(arg.get()); };
    if (node->op == Op::score || std::any_of(node->args.begin(), node->args.end(), is_one)) found.insert(node);
  }
  return found;
}

/// The reals that lead to something discrete.
Nodes deciding(const std::vector<const Node*>& order) {
  const Nodes inexact = of_score(order);
  Nodes found;
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    const Node& node = **at;
    const Type operand = node.args.empty() ? node.type : node.args.front()->type;
    if (inexact.contains(&node) || !(found.contains(&node) || scoring::is_discrete(node.op, node.type, operand))) continue;
    for (const auto& arg : node.args)
      if (arg->type == Type::real) found.insert(arg.get());
  }
  return found;
}

/// By a power of two, which only moves the exponent.
bool is_exact_factor(const Node& node) {
  int exponent = 0;
  return node.op == Op::real_const && std::abs(std::frexp(node.real, &exponent)) == 0.5 && std::abs(exponent) < 64;
}

/// The numbers of an expression that float32 holds as they are.
class Held {
 public:
  bool contains(const Node* node) const { return held_.contains(node); }
  void insert(const Node* node) { held_.insert(node); }

  /// Whether a node is one of them, its operands known.
  bool is_one(const Node& node) {
    if (is_whole(node)) whole_.insert(&node);
    switch (node.op) {
      case Op::real_const:
        return scoring::to_float32(node.real) == node.real;
      case Op::integer_const:
        return node.integer == static_cast<std::int64_t>(static_cast<float>(node.integer));
      case Op::to_float32:
      case Op::to_bfloat16:
      case Op::to_float16:
        return true;
      case Op::neg:
      case Op::abs:
      case Op::min:
      case Op::max:
      case Op::floor:
      case Op::stop_gradient:
      case Op::select:
      case Op::to_real:
        return all_in(held_, node);
      case Op::mul:
        if (node.type == Type::real && is_exact_factor(*node.args[0])) return contains(node.args[1].get());
        [[fallthrough]];
      case Op::div:
        return node.type == Type::real && is_exact_factor(*node.args[1]) && contains(node.args[0].get());
      default:
        return node.type == Type::real ? whole_.contains(&node) : node.op != Op::read && node.op != Op::shift_left && all_in(held_, node);
    }
  }

 private:
  static bool all_in(const Nodes& nodes, const Node& node) {
    return std::all_of(node.args.begin(), node.args.end(),
                       [&](const auto& arg) { return arg->type == Type::boolean || nodes.contains(arg.get()); });
  }

  /// A sum of positions as a real: these are far below 2^24, where float32 begins to round integers; those of parameters and products may not be.
  bool is_whole(const Node& node) const {
    if (node.op == Op::real_const) return node.real == std::trunc(node.real) && std::abs(node.real) < 1 << 20;
    if (node.op == Op::to_real) return held_.contains(node.args[0].get());
    return node.type == Type::real && (node.op == Op::add || node.op == Op::sub || node.op == Op::neg) && all_in(whole_, node);
  }

  Nodes held_, whole_;
};

}  // namespace

Expr float32_where_deciding(const Expr& expr, const std::vector<Expr>& singles) {
  const std::vector<const Node*> order = operands_first(expr);
  const Nodes decides = deciding(order);
  if (decides.empty()) return expr;
  Nodes rounded;
  Held held;
  for (const Expr& single : singles)
    if (decides.contains(single.node().get())) rounded.insert(single.node().get());
  for (const Node* node : order) {
    if (node->type != Type::boolean && held.is_one(*node))
      rounded.erase(node);
    else if (!rounded.contains(node))
      continue;
    held.insert(node);
  }
  if (rounded.empty()) return expr;
  return rewritten(expr, [&](const Node& node, const std::vector<Expr>& args) -> Expr {
    if (!rounded.contains(&node)) return Expr();
    return node.op == Op::real_const ? Expr(scoring::to_float32(node.real)) : to_float32(copy_of(node, args));
  });
}

}  // namespace foveal::python
