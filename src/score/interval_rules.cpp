#include "score/interval_rules.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "score/rounding.h"

namespace foveal::scoring::interval_rules {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double relative_margin = 0x1p-18, absolute_margin = 1e-37;  // a few roundings of float; denormals flushed to zero

constexpr double largest_float = std::numeric_limits<float>::max();

constexpr Interval no{0, 0}, yes{1, 1}, either{0, 1};

bool contains(const Interval& x, double value) { return x.low <= value && value <= x.high; }
bool is_infinite(const Interval& x) { return std::isinf(x.low) || std::isinf(x.high); }
bool is_point(const Interval& x) { return x.low == x.high; }
bool any_nan(const Interval& a, const Interval& b) { return a.maybe_nan || b.maybe_nan; }

/// Undefined bounds (inf - inf) become infinite.
Interval defined(double low, double high, bool maybe_nan) {
  return {std::isnan(low) ? -inf : low, std::isnan(high) ? inf : high, maybe_nan};
}

Interval rounded(Type type, const Interval& x) { return type == Type::real ? widened(x) : x; }

Interval hull_of(std::initializer_list<double> corners, bool maybe_nan) {
  double low = inf, high = -inf;
  for (double corner : corners) {
    if (std::isnan(corner)) return {-inf, inf, maybe_nan};
    low = std::min(low, corner);
    high = std::max(high, corner);
  }
  return {low, high, maybe_nan};
}

template <class Function>
Interval rising(Function function, const Interval& a) {
  return widened(defined(function(a.low), function(a.high), a.maybe_nan));
}

Interval truth(bool surely_true, bool surely_false) { return surely_true ? yes : surely_false ? no : either; }

/// Does [low, high] contain phase + n * period for an integer n?
bool hits(const Interval& x, double phase, double period) {
  return std::floor((x.high - phase) / period) >= std::ceil((x.low - phase) / period);
}

Interval within(const Interval& x, double low, double high) { return {std::max(x.low, low), std::min(x.high, high), x.maybe_nan}; }

}  // namespace

Interval everything(Type type) {
  if (type == Type::boolean) return either;
  return {-inf, inf, type == Type::real};
}

Interval widened(Interval x) {
  if (std::isfinite(x.low)) x.low -= std::abs(x.low) * relative_margin + absolute_margin;
  if (std::isfinite(x.high)) x.high += std::abs(x.high) * relative_margin + absolute_margin;
  if (x.low < -largest_float) x.low = -inf;  // a float overflows where a double does not
  if (x.high > largest_float) x.high = inf;
  return x;
}

Interval in_kernels(double value) {
  const auto single = static_cast<float>(value);
  const bool exact = static_cast<double>(single) == value && std::fpclassify(single) != FP_SUBNORMAL;
  return exact ? Interval{value, value} : widened({value, value});
}

Interval whole(Interval x) {
  constexpr double exact = 0x1p53, margin = 0x1p-50;  // a larger number may have been rounded to the first that is not exact
  if (std::isfinite(x.low) && std::abs(x.low) >= exact) x.low -= std::abs(x.low) * margin;
  if (std::isfinite(x.high) && std::abs(x.high) >= exact) x.high += std::abs(x.high) * margin;
  return x;
}

Interval add(Type type, const Interval& a, const Interval& b, const Interval&) {
  const bool undefined = (a.low == -inf && b.high == inf) || (a.high == inf && b.low == -inf);
  return rounded(type, defined(a.low + b.low, a.high + b.high, any_nan(a, b) || undefined));
}

Interval sub(Type type, const Interval& a, const Interval& b, const Interval& c) { return add(type, a, neg(type, b, c, c), c); }

Interval mul(Type type, const Interval& a, const Interval& b, const Interval&) {
  const auto product = [](double x, double y) { return x == 0 || y == 0 ? 0 : x * y; };
  const bool undefined = (contains(a, 0) && is_infinite(b)) || (contains(b, 0) && is_infinite(a));
  return rounded(type, hull_of({product(a.low, b.low), product(a.low, b.high), product(a.high, b.low), product(a.high, b.high)},
                               any_nan(a, b) || undefined));
}

Interval div(Type type, const Interval& a, const Interval& b, const Interval&) {
  if (contains(b, 0)) return {-inf, inf, true};
  const bool undefined = is_infinite(a) && is_infinite(b);
  return rounded(type, hull_of({a.low / b.low, a.low / b.high, a.high / b.low, a.high / b.high}, any_nan(a, b) || undefined));
}

Interval floor_div(Type type, const Interval& a, const Interval& b, const Interval& c) {
  if (contains(b, 0)) {
    if (type == Type::real) return everything(type);
    const double far = std::max(std::abs(a.low), std::abs(a.high));  // division by 0 gives 0
    return {-far, far};
  }
  if (type == Type::real && (is_infinite(a) || is_infinite(b))) return everything(type);
  return floor(type, div(type, a, b, c), c, c);
}

Interval mod(Type type, const Interval& a, const Interval& b, const Interval& c) {
  if (contains(b, 0)) {
    if (type == Type::real) return everything(type);
    return {std::min(b.low + 1, 0.0), std::max(b.high - 1, 0.0)};
  }
  if (b.high < 0) return neg(type, mod(type, neg(type, a, c, c), neg(type, b, c, c), c), c, c);
  const bool maybe_nan = any_nan(a, b) || (type == Type::real && (is_infinite(a) || is_infinite(b)));
  const double top = type == Type::integer ? b.high - 1 : b.high;
  if (is_point(b) && a.high - a.low < b.low) {
    const auto rest = [&b](double x) {  // exact where the quotient is not
      const double remainder = std::fmod(x, b.low);
      return remainder < 0 ? remainder + b.low : remainder;
    };
    const double low = rest(a.low), high = rest(a.high);
    if (low <= high) return within(rounded(type, {low, high, maybe_nan}), 0, top);  // in one period
  }
  if (a.low >= 0) return {a.high < b.low ? a.low : 0, std::min(a.high, top), maybe_nan};
  return {0, top, maybe_nan};
}

Interval neg(Type, const Interval& a, const Interval&, const Interval&) { return {-a.high, -a.low, a.maybe_nan}; }

Interval abs(Type, const Interval& a, const Interval&, const Interval&) {
  const double far = std::max(-a.low, a.high);
  return {contains(a, 0) ? 0 : std::min(std::abs(a.low), std::abs(a.high)), far, a.maybe_nan};
}

// With a NaN operand the result may be either operand.
Interval min(Type, const Interval& a, const Interval& b, const Interval&) {
  if (any_nan(a, b)) return {std::min(a.low, b.low), std::max(a.high, b.high), true};
  return {std::min(a.low, b.low), std::min(a.high, b.high), false};
}

Interval max(Type, const Interval& a, const Interval& b, const Interval&) {
  if (any_nan(a, b)) return {std::min(a.low, b.low), std::max(a.high, b.high), true};
  return {std::max(a.low, b.low), std::max(a.high, b.high), false};
}

// The absolute error of the exponent, and with it the relative error of the result, grows with the exponent.
Interval exp(Type, const Interval& a, const Interval&, const Interval&) {
  const Interval exponent = widened(a);
  return within(widened({std::exp(exponent.low), std::exp(exponent.high), a.maybe_nan}), 0, inf);
}

Interval exp2(Type type, const Interval& a, const Interval& b, const Interval& c) {
  return exp(type, {a.low * std::numbers::ln2, a.high * std::numbers::ln2, a.maybe_nan}, b, c);
}

Interval log(Type, const Interval& a, const Interval&, const Interval&) {
  if (a.high < 0) return {-inf, inf, true};
  const Interval bounds{std::log(std::max(a.low, 0.0)) - relative_margin, std::log(a.high) + relative_margin, a.maybe_nan || a.low < 0};
  return widened(bounds);
}

Interval log2(Type, const Interval& a, const Interval&, const Interval&) {
  if (a.high < 0) return {-inf, inf, true};
  const Interval bounds{std::log2(std::max(a.low, 0.0)) - relative_margin, std::log2(a.high) + relative_margin, a.maybe_nan || a.low < 0};
  return widened(bounds);
}

Interval sqrt(Type, const Interval& a, const Interval&, const Interval&) {
  if (a.high < 0) return {-inf, inf, true};
  return within(widened({std::sqrt(std::max(a.low, 0.0)), std::sqrt(a.high), a.maybe_nan || a.low < 0}), 0, inf);
}

Interval rsqrt(Type, const Interval& a, const Interval&, const Interval&) {
  if (a.high < 0) return {-inf, inf, true};
  if (a.low <= 0) return {-inf, inf, a.maybe_nan || a.low < 0};  // rsqrt(-0) is -inf
  return within(widened({1 / std::sqrt(a.high), 1 / std::sqrt(a.low), a.maybe_nan}), 0, inf);
}

Interval tanh(Type, const Interval& a, const Interval&, const Interval&) {
  return within(rising([](double x) { return std::tanh(x); }, a), -1, 1);
}

Interval sigmoid(Type, const Interval& a, const Interval&, const Interval&) {
  return within(rising([](double x) { return 1 / (1 + std::exp(-x)); }, a), 0, 1);
}

Interval sin(Type type, const Interval& a, const Interval& b, const Interval& c) {
  const double quarter = std::numbers::pi / 2;
  return cos(type, {a.low - quarter, a.high - quarter, a.maybe_nan}, b, c);
}

Interval cos(Type, const Interval& a, const Interval&, const Interval&) {
  // Beyond 1e4 the rounding error of the argument matters.
  if (is_infinite(a) || std::max(std::abs(a.low), std::abs(a.high)) > 1e4) return {-1, 1, a.maybe_nan || is_infinite(a)};
  const double turn = 2 * std::numbers::pi;
  const double ends[2] = {std::cos(a.low), std::cos(a.high)};
  const double low = hits(a, std::numbers::pi, turn) ? -1 : std::min(ends[0], ends[1]);
  const double high = hits(a, 0, turn) ? 1 : std::max(ends[0], ends[1]);
  return within({low - 1e-3, high + 1e-3, a.maybe_nan}, -1, 1);
}

Interval tan(Type, const Interval& a, const Interval&, const Interval&) {
  const Interval around{a.low - 1e-3, a.high + 1e-3};
  if (is_infinite(a) || std::max(std::abs(a.low), std::abs(a.high)) > 1e4 || hits(around, std::numbers::pi / 2, std::numbers::pi)) {
    return {-inf, inf, a.maybe_nan || is_infinite(a)};
  }
  return widened({std::tan(around.low), std::tan(around.high), a.maybe_nan});
}

Interval erf(Type, const Interval& a, const Interval&, const Interval&) {
  return within(rising([](double x) { return std::erf(x); }, a), -1, 1);
}

Interval floor(Type, const Interval& a, const Interval&, const Interval&) { return {std::floor(a.low), std::floor(a.high), a.maybe_nan}; }

Interval pow(Type, const Interval& a, const Interval& b, const Interval&) {
  if (a.low <= 0 || any_nan(a, b) || is_infinite(a) || is_infinite(b)) return {-inf, inf, true};
  // exp(b log a): b log a is extreme at corners, and the error of the product grows with its magnitude.
  Interval x = hull_of({std::pow(a.low, b.low), std::pow(a.low, b.high), std::pow(a.high, b.low), std::pow(a.high, b.high)}, false);
  const double margin =
      relative_margin * (1 + std::max(std::abs(b.low), std::abs(b.high)) * std::max(std::abs(std::log(a.low)), std::abs(std::log(a.high))));
  return within(widened({x.low * (1 - margin), x.high * (1 + margin), false}), 0, inf);
}

Interval stop_gradient(Type, const Interval& a, const Interval&, const Interval&) { return a; }

Interval eq(Type, const Interval& a, const Interval& b, const Interval&) {
  return truth(is_point(a) && is_point(b) && a.low == b.low && !any_nan(a, b), a.high < b.low || b.high < a.low);
}

Interval ne(Type type, const Interval& a, const Interval& b, const Interval& c) { return logical_not(type, eq(type, a, b, c), c, c); }

Interval lt(Type, const Interval& a, const Interval& b, const Interval&) {
  return truth(a.high < b.low && !any_nan(a, b), a.low >= b.high);
}

Interval le(Type, const Interval& a, const Interval& b, const Interval&) {
  return truth(a.high <= b.low && !any_nan(a, b), a.low > b.high);
}

Interval logical_and(Type, const Interval& a, const Interval& b, const Interval&) {
  return {std::min(a.low, b.low), std::min(a.high, b.high)};
}

Interval logical_or(Type, const Interval& a, const Interval& b, const Interval&) {
  return {std::max(a.low, b.low), std::max(a.high, b.high)};
}

Interval logical_not(Type, const Interval& a, const Interval&, const Interval&) { return {1 - a.high, 1 - a.low}; }

Interval logical_xor(Type, const Interval& a, const Interval& b, const Interval&) {
  return is_point(a) && is_point(b) ? truth(a.low != b.low, a.low == b.low) : either;
}

namespace {

/// The smallest 2^k with -2^k <= a, b < 2^k, or infinity where doubles are no longer exact.
double bits_of(const Interval& a, const Interval& b) {
  const double far = std::max({-a.low, a.high + 1, -b.low, b.high + 1, 1.0});
  return far <= 0x1p52 ? std::exp2(std::ceil(std::log2(far))) : inf;
}

template <class Operation>
Interval of_bits(const Interval& a, const Interval& b, Operation operation) {
  const double bits = bits_of(a, b);
  if (bits == inf) return {-inf, inf};
  if (is_point(a) && is_point(b)) {
    const auto value = static_cast<double>(operation(static_cast<std::int64_t>(a.low), static_cast<std::int64_t>(b.low)));
    return {value, value};
  }
  return {a.low >= 0 && b.low >= 0 ? 0 : -bits, bits - 1};
}

Interval shift_counts(const Interval& b) { return {std::clamp(b.low, 0.0, 63.0), std::clamp(b.high, 0.0, 63.0)}; }

}  // namespace

Interval bit_and(Type, const Interval& a, const Interval& b, const Interval&) {
  Interval bounds = of_bits(a, b, [](std::int64_t x, std::int64_t y) { return x & y; });
  for (const Interval* one : {&a, &b})  // the result has no bit that one of them lacks
    if (one->low >= 0) bounds = {std::max(bounds.low, 0.0), std::min(bounds.high, one->high)};
  return bounds;
}

Interval bit_or(Type, const Interval& a, const Interval& b, const Interval&) {
  return of_bits(a, b, [](std::int64_t x, std::int64_t y) { return x | y; });
}

Interval bit_xor(Type, const Interval& a, const Interval& b, const Interval&) {
  return of_bits(a, b, [](std::int64_t x, std::int64_t y) { return x ^ y; });
}

Interval shift_left(Type type, const Interval& a, const Interval& b, const Interval& c) {
  if (is_infinite(b)) return {-inf, inf};
  const Interval counts = shift_counts(b);
  return mul(type, a, {std::exp2(counts.low), std::exp2(counts.high)}, c);
}

Interval shift_right(Type type, const Interval& a, const Interval& b, const Interval& c) {
  const Interval counts = shift_counts(b);
  return floor(type, mul(type, a, {std::exp2(-counts.high), std::exp2(-counts.low)}, c), c, c);
}

Interval select(Type, const Interval& a, const Interval& b, const Interval& c) {
  if (a.low > 0) return b;
  if (a.high <= 0) return c;
  return {std::min(b.low, c.low), std::max(b.high, c.high), any_nan(b, c)};
}

Interval to_real(Type, const Interval& a, const Interval&, const Interval&) {
  return std::max(std::abs(a.low), std::abs(a.high)) <= 0x1p24 ? a : widened(a);
}

Interval to_integer(Type, const Interval& a, const Interval&, const Interval&) {
  if (a.maybe_nan || is_infinite(a) || std::max(-a.low, a.high) >= 0x1p63) return {-inf, inf};
  return {std::trunc(a.low), std::trunc(a.high)};
}

Interval to_int32(Type, const Interval& a, const Interval&, const Interval&) {
  constexpr double low = -2147483648.0, high = 2147483647.0;
  return a.low >= low && a.high <= high ? a : Interval{low, high};
}

// Rounding keeps the order.
Interval to_float32(Type, const Interval& a, const Interval&, const Interval&) {
  return {scoring::to_float32(a.low), scoring::to_float32(a.high), a.maybe_nan};
}

Interval to_bfloat16(Type, const Interval& a, const Interval&, const Interval&) {
  return {scoring::to_bfloat16(a.low), scoring::to_bfloat16(a.high), a.maybe_nan};
}

Interval to_float16(Type, const Interval& a, const Interval&, const Interval&) {
  return {scoring::to_float16(a.low), scoring::to_float16(a.high), a.maybe_nan};
}

Interval to_boolean(Type, const Interval& a, const Interval&, const Interval&) {
  return truth(!contains(a, 0), a.low == 0 && a.high == 0 && !a.maybe_nan);
}

}  // namespace foveal::scoring::interval_rules
