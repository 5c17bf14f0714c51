#include "float32.h"

#include <algorithm>
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

/// A number that float32 holds as it is, its operands known. Positions are far below 2^24, where float32 begins to round integers; those of
/// parameters and of products may not be.
bool is_held(const Node& node, const Nodes& held) {
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
      break;
    default:
      if (node.type == Type::real || node.op == Op::read || node.op == Op::mul || node.op == Op::shift_left) return false;
  }
  return std::all_of(node.args.begin(), node.args.end(),
                     [&held](const auto& arg) { return arg->type == Type::boolean || held.contains(arg.get()); });
}

}  // namespace

Expr float32_where_deciding(const Expr& expr, const std::vector<Expr>& singles) {
  const std::vector<const Node*> order = operands_first(expr);
  const Nodes decides = deciding(order);
  if (decides.empty()) return expr;
  Nodes rounded, held;
  for (const Expr& single : singles)
    if (decides.contains(single.node().get())) rounded.insert(single.node().get());
  for (const Node* node : order) {
    if (node->type != Type::boolean && is_held(*node, held))
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
