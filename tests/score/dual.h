#pragma once
// An evaluator that shares nothing with the compiler: walks the nodes as they were built, with dual numbers for the derivative.
#include <cmath>
#include <functional>
#include <numbers>
#include <unordered_map>

#include "score/evaluate.h"
#include "score/node.h"

namespace foveal::test {

struct Dual {
  double value = 0, derivative = 0;
};

/// What a node is worth at a point: reads come from `read`, the derivative is with respect to whatever is seeded with derivative 1.
class DualEvaluator {
 public:
  using Read = std::function<Dual(const Param::Info&, const std::vector<std::int64_t>&)>;
  DualEvaluator(const scoring::Point& point, double score_derivative, Read read)
      : point_(point), score_derivative_(score_derivative), read_(std::move(read)) {}

  Dual operator()(const Expr& expr) { return visit(expr.node().get()); }
  /// Simplification does not keep the sign of zero, so the value of 1 / 0 is either infinity.
  bool divided_by_zero() const { return divided_by_zero_; }

 private:
  Dual visit(const scoring::Node* node) {
    if (auto known = known_.find(node); known != known_.end()) return known->second;
    return known_[node] = compute(*node);
  }

  Dual compute(const scoring::Node& node) {
    using scoring::Op;
    switch (node.op) {
      case Op::real_const:
        return {node.real, 0};
      case Op::integer_const:
      case Op::boolean_const:
        return {static_cast<double>(node.integer), 0};
      case Op::score:
        return {point_.score, score_derivative_};
      case Op::batch:
        return {static_cast<double>(point_.batch), 0};
      case Op::head:
        return {static_cast<double>(point_.head), 0};
      case Op::q_idx:
        return {static_cast<double>(point_.q_idx), 0};
      case Op::kv_idx:
        return {static_cast<double>(point_.kv_idx), 0};
      case Op::seqlen_q:
        return {static_cast<double>(point_.seqlen_q), 0};
      case Op::seqlen_kv:
        return {static_cast<double>(point_.seqlen_kv), 0};
      case Op::read: {
        std::vector<std::int64_t> index;
        for (const auto& arg : node.args) index.push_back(static_cast<std::int64_t>(visit(arg.get()).value));
        return read_(*node.param, index);
      }
      default:
        break;
    }
    const Dual a = visit(node.args[0].get());
    const Dual b = node.args.size() > 1 ? visit(node.args[1].get()) : Dual{};
    const Dual c = node.args.size() > 2 ? visit(node.args[2].get()) : Dual{};
    const double x = a.value, y = b.value, dx = a.derivative, dy = b.derivative;
    const bool whole = node.type == Type::integer;
    const bool divides = node.op == Op::div || node.op == Op::floor_div || node.op == Op::mod;
    divided_by_zero_ |= !whole && ((divides && y == 0) || (x == 0 && (node.op == Op::rsqrt || (node.op == Op::pow && y < 0))));
    switch (node.op) {
      case Op::add:
        return {x + y, dx + dy};
      case Op::sub:
        return {x - y, dx - dy};
      case Op::mul:
        return {x * y, times(y, dx) + times(x, dy)};
      case Op::div:
        return {x / y, times(1 / y, dx) - times(x / y / y, dy)};
      case Op::floor_div:
        return {floor_quotient(x, y, whole), 0};
      case Op::mod: {
        if (whole && y == 0) return {0, 0};
        double rest = std::fmod(x, y);
        if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
        return {rest, dx - times(floor_quotient(x, y, whole), dy)};
      }
      case Op::neg:
        return {-x, -dx};
      case Op::abs:
        return {std::fabs(x), x > 0 ? dx : x < 0 ? -dx : 0};
      case Op::min:
        return y < x || std::isnan(y) ? Dual{y, dy} : x < y ? Dual{x, dx} : Dual{x, dx / 2 + dy / 2};
      case Op::max:
        return x < y || std::isnan(y) ? Dual{y, dy} : y < x ? Dual{x, dx} : Dual{x, dx / 2 + dy / 2};
      case Op::stop_gradient:
        return {x, 0};
      case Op::bit_and:
        return {static_cast<double>(static_cast<long long>(x) & static_cast<long long>(y)), 0};
      case Op::bit_or:
        return {static_cast<double>(static_cast<long long>(x) | static_cast<long long>(y)), 0};
      case Op::bit_xor:
        return {static_cast<double>(static_cast<long long>(x) ^ static_cast<long long>(y)), 0};
      case Op::shift_left:
        return {x * std::pow(2, std::fmin(std::fmax(y, 0), 63)), 0};
      case Op::shift_right:
        return {std::floor(x / std::pow(2, std::fmin(std::fmax(y, 0), 63))), 0};
      case Op::exp:
        return {std::exp(x), times(std::exp(x), dx)};
      case Op::exp2:
        return {std::exp2(x), times(std::exp2(x) * std::log(2.0), dx)};
      case Op::log:
        return {std::log(x), times(1 / x, dx)};
      case Op::log2:
        return {std::log2(x), times(1 / (x * std::log(2.0)), dx)};
      case Op::sqrt:
        return {std::sqrt(x), times(0.5 / std::sqrt(x), dx)};
      case Op::rsqrt:
        return {1 / std::sqrt(x), times(-0.5 / (x * std::sqrt(x)), dx)};
      case Op::tanh:
        return {std::tanh(x), times(1 / (std::cosh(x) * std::cosh(x)), dx)};
      case Op::sigmoid:
        return {1 / (1 + std::exp(-x)), times(1 / ((1 + std::exp(-x)) * (1 + std::exp(x))), dx)};
      case Op::sin:
        return {std::sin(x), times(std::cos(x), dx)};
      case Op::cos:
        return {std::cos(x), times(-std::sin(x), dx)};
      case Op::tan:
        return {std::tan(x), times(1 / (std::cos(x) * std::cos(x)), dx)};
      case Op::erf:
        return {std::erf(x), times(2 * std::numbers::inv_sqrtpi * std::exp(-x * x), dx)};
      case Op::floor:
        return {std::floor(x), 0};
      case Op::pow: {
        const double power = y == 2 ? x * x : y == -1 ? 1 / x : std::pow(x, y);  // by definition
        return {power, (y == 0 ? 0 : times(y * std::pow(x, y - 1), dx)) + (x == 0 ? 0 : times(power * std::log(x), dy))};
      }
      case Op::eq:
        return {static_cast<double>(x == y), 0};
      case Op::ne:
        return {static_cast<double>(x != y), 0};
      case Op::lt:
        return {static_cast<double>(x < y), 0};
      case Op::le:
        return {static_cast<double>(x <= y), 0};
      case Op::logical_and:
        return {static_cast<double>(x != 0 && y != 0), 0};
      case Op::logical_or:
        return {static_cast<double>(x != 0 || y != 0), 0};
      case Op::logical_xor:
        return {static_cast<double>((x != 0) != (y != 0)), 0};
      case Op::logical_not:
        return {static_cast<double>(x == 0), 0};
      case Op::select:
        return x != 0 ? b : c;
      case Op::to_real:
        return {x, 0};
      case Op::to_integer:
        return {std::isnan(x) ? 0 : std::trunc(std::fmin(std::fmax(x, -2147483648.0), 2147483647.0)), 0};
      case Op::to_boolean:
        return {static_cast<double>(x != 0), 0};
      default:
        return {};
    }
  }

  /// What does not vary contributes nothing, however steep the function is.
  /// As Python defines it: a quotient of reals may be rounded up to the integer above it, and 1 // -inf is -1.
  static double floor_quotient(double x, double y, bool whole) {
    if (whole) return y == 0 ? 0 : std::floor(x / y);
    if (y == 0) return x / y;
    const double rest = std::fmod(x, y), quotient = std::nearbyint((x - rest) / y);
    return rest != 0 && (rest < 0) != (y < 0) ? quotient - 1 : quotient;
  }
  static double times(double slope, double derivative) { return derivative == 0 ? 0 : slope * derivative; }

  scoring::Point point_;
  double score_derivative_;
  Read read_;
  bool divided_by_zero_ = false;
  std::unordered_map<const scoring::Node*, Dual> known_;
};

}  // namespace foveal::test
