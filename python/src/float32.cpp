#include "float32.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

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

namespace {

bool is_sum(const Node& node) { return node.type == Type::real && (node.op == Op::add || node.op == Op::sub); }

/// Of a sum that depends on the score: which of its terms does not; -1 if both do.
int free_term(const Node& sum, const Nodes& of_score) {
  if (!of_score.contains(sum.args[1].get())) return 1;
  return sum.op == Op::add && !of_score.contains(sum.args[0].get()) ? 0 : -1;
}

Expr rounded(const Expr& expr) { return expr.node()->op == Op::to_float32 ? expr : to_float32(expr); }

Expr unrounded(const Expr& expr) { return expr.node()->op == Op::to_float32 ? Expr(expr.node()->args[0]) : expr; }

}  // namespace

Expr float64_sums(const Expr& expr, const std::vector<Expr>& doubles) {
  const std::vector<const Node*> order = operands_first(expr);
  const Nodes inexact = of_score(order), decides = deciding(order);  // what decides is computed in float64 anyway
  Nodes wide, within;  // reals of float64 that do not depend on the score; what sums of such are made of
  for (const Expr& value : doubles) wide.insert(value.node().get());
  for (const Node* node : order) {
    const auto is_wide = [&](const auto& arg) { return wide.contains(arg.get()); };
    const bool rounds = node->op == Op::to_float32 || node->op == Op::to_bfloat16 || node->op == Op::to_float16;
    if (inexact.contains(node) || rounds || node->type != Type::real)
      wide.erase(node);
    else if (node->op != Op::read && std::any_of(node->args.begin(), node->args.end(), is_wide))
      wide.insert(node);
  }
  for (auto at = order.rbegin(); at != order.rend(); ++at)
    if (wide.contains(*at) && (within.contains(*at) || is_sum(**at)))
      for (const auto& arg : (*at)->args) within.insert(arg.get());
  const auto is_rounded = [&](const Node& node) {
    const bool computed = node.op != Op::read && node.op != Op::to_real && !node.args.empty();
    return wide.contains(&node) && computed && (is_sum(node) || within.contains(&node));
  };
  const auto keeps = [&](const Node& node) {  // float64 in its operands
    const bool sums = wide.contains(&node) && (is_sum(node) || within.contains(&node));
    return sums || decides.contains(&node) || scoring::is_discrete(node.op, node.type, node.args.front()->type);
  };
  Nodes ends_wide;  // new sums of what depends on the score and, last, what does not, of float64
  const Expr result = rewritten(expr, [&](const Node& node, const std::vector<Expr>& args) -> Expr {
    if (node.args.empty() || keeps(node)) return Expr();
    std::vector<Expr> operands;
    bool same = true;
    for (std::size_t i = 0; i < args.size(); ++i) {
      operands.push_back(is_rounded(*node.args[i]) ? rounded(args[i]) : args[i]);
      same = same && operands[i].node() == args[i].node();
    }
    // (score + a) - b is score + (a - b): a and b may be large.
    const int free = inexact.contains(&node) && is_sum(node) ? free_term(node, inexact) : -1;
    if (free < 0) return same ? Expr() : copy_of(node, operands);
    if (const Node& before = *args[1 - free].node(); ends_wide.contains(&before)) {
      const Expr a = unrounded(Expr(before.args[1])), b = args[free], from = before.op == Op::sub ? -a : a;
      Expr sum = Expr(before.args[0]) + rounded(node.op == Op::sub ? from - b : from + b);
      ends_wide.insert(sum.node().get());
      return sum;
    }
    if (free == 0) std::swap(operands[0], operands[1]);
    Expr sum = copy_of(node, operands);
    if (wide.contains(node.args[free].get())) ends_wide.insert(sum.node().get());
    return sum;
  });
  return expr.present() && is_rounded(*expr.node()) ? rounded(result) : result;
}

}  // namespace foveal::python
