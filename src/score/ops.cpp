#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numbers>

#include "score/graph.h"
#include "score/interval_rules.h"
#include "score/op_table.h"
#include "score/rounding.h"

namespace foveal::scoring {

ValueId TangentStep::scaled(ValueId factor, ValueId value) const {
  if (value == zero_tangent) return zero_tangent;
  const Instr instr = graph[value];
  if (instr.op == Op::select) {
    const auto zero = [this](ValueId arm) { return graph[arm].op == Op::real_const && graph[arm].real == 0; };
    if (zero(instr.arg[1])) return graph.make(Op::select, instr.arg[0], instr.arg[1], scaled(factor, instr.arg[2]));
    if (zero(instr.arg[2])) return graph.make(Op::select, instr.arg[0], scaled(factor, instr.arg[1]), instr.arg[2]);
  }
  const ValueId product = graph.make(Op::mul, factor, value);
  if (!graph.may_vanish(value) || graph.is_const(factor)) return product;
  const ValueId zero = graph.real(0);
  return graph.make(Op::select, graph.make(Op::eq, value, zero), zero, product);
}

ValueId TangentStep::sum(ValueId a, ValueId b) const {
  if (a == zero_tangent || b == zero_tangent) return std::max(a, b);
  return graph.make(Op::add, a, b);
}

ValueId TangentStep::difference(ValueId a, ValueId b) const {
  if (b == zero_tangent) return a;
  if (a == zero_tangent) return graph.make(Op::neg, b);
  return graph.make(Op::sub, a, b);
}

ValueId TangentStep::choose(ValueId condition, ValueId if_true, ValueId if_false) const {
  if (if_true == zero_tangent && if_false == zero_tangent) return zero_tangent;
  const ValueId zero = graph.real(0);
  return graph.make(Op::select, condition, if_true == zero_tangent ? zero : if_true, if_false == zero_tangent ? zero : if_false);
}

namespace {

using Step = TangentStep;

double remainder(double a, double b) {  // Python's: the sign of the divisor
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/// Python's: a / b may be rounded up to an integer that it is below, the remainder is exact.
double floor_quotient(double a, double b) {
  if (b == 0) return a / b;
  const double rest = std::fmod(a, b), whole = std::nearbyint((a - rest) / b);
  return rest != 0 && (rest < 0) != (b < 0) ? whole - 1 : whole;
}

// Integer division by 0 has no value in the language; evaluation gives 0.
double floor_quotient(Type type, double a, double b) { return type == Type::real ? floor_quotient(a, b) : b == 0 ? 0 : std::floor(a / b); }
double floor_remainder(Type type, double a, double b) { return type == Type::integer && b == 0 ? 0 : remainder(a, b); }

using Int = std::int64_t;

/// Wrapping 64-bit arithmetic. Planning refuses programs whose integers provably overflow.
template <class Operation>
Int wrapped(Int a, Int b, Operation operation) {
  return static_cast<Int>(operation(static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b)));
}
Int negated(Int a) { return wrapped(0, a, std::minus()); }
Int quotient(Int a, Int b) { return b == 0 ? 0 : b == -1 ? negated(a) : floor_divide(a, b); }
Int rest(Int a, Int b) { return b == 0 || b == -1 ? 0 : floor_modulo(a, b); }
Int low_word(Int a) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(static_cast<std::uint64_t>(a))); }
Int shift_count(Int b) { return std::clamp<Int>(b, 0, 63); }  // others are undefined in the language
Int shifted_left(Int a, Int b) {
  return wrapped(a, b, [b](std::uint64_t x, std::uint64_t) { return x << shift_count(b); });
}

/// Exact for integers below 2^53 in magnitude.
template <class Operation>
double of_small(double a, double b, Operation operation) {
  return static_cast<double>(operation(truncated(a), truncated(b)));
}

// df(x) = f'(x) dx, where f' is written in terms of self = f(x) or of x, whichever is cheaper.
ValueId times_constant(const Step& s, double constant, ValueId value) { return s.graph.make(Op::mul, s.graph.real(constant), value); }

ValueId d_tanh(const Step& s) {
  const ValueId square = s.graph.make(Op::mul, s.self, s.self);
  return s.scaled(s.graph.make(Op::sub, s.graph.real(1), square), s.tangent[0]);
}

ValueId d_sigmoid(const Step& s) {
  const ValueId rest = s.graph.make(Op::sub, s.graph.real(1), s.self);
  return s.scaled(s.graph.make(Op::mul, s.self, rest), s.tangent[0]);
}

ValueId d_tan(const Step& s) {
  const ValueId square = s.graph.make(Op::mul, s.self, s.self);
  return s.scaled(s.graph.make(Op::add, s.graph.real(1), square), s.tangent[0]);
}

ValueId d_erf(const Step& s) {  // 2 / sqrt(pi) exp(-x^2)
  const ValueId gauss = s.graph.make(Op::exp, s.graph.make(Op::neg, s.graph.make(Op::mul, s.arg[0], s.arg[0])));
  return s.scaled(times_constant(s, 2 * std::numbers::inv_sqrtpi, gauss), s.tangent[0]);
}

ValueId d_rsqrt(const Step& s) {  // -1/2 x^(-3/2) = -1/2 self / x
  return s.scaled(times_constant(s, -0.5, s.graph.make(Op::div, s.self, s.arg[0])), s.tangent[0]);
}

ValueId d_abs(const Step& s) {  // 0 at 0
  const ValueId zero = s.graph.real(0);
  const ValueId sloped = s.choose(s.graph.make(Op::lt, zero, s.arg[0]), s.tangent[0], s.difference(zero_tangent, s.tangent[0]));
  return s.choose(s.graph.make(Op::eq, s.arg[0], zero), zero_tangent, sloped);
}

ValueId d_div(const Step& s) {  // (da - self db) / b
  const ValueId numerator = s.difference(s.tangent[0], s.scaled(s.self, s.tangent[1]));
  return s.scaled(s.graph.make(Op::div, s.graph.real(1), s.arg[1]), numerator);
}

ValueId d_mod(const Step& s) {  // a - floor(a / b) b
  const ValueId quotient = s.graph.make(Op::floor_div, s.arg[0], s.arg[1]);
  return s.difference(s.tangent[0], s.scaled(quotient, s.tangent[1]));
}

/// At a tie, half of the gradient goes to each operand. One without a tangent comes first: scaled() takes factors past zero branches.
ValueId d_extreme(const Step& s, ValueId is_first, ValueId is_second) {
  const ValueId both = s.scaled(s.graph.real(0.5), s.sum(s.tangent[0], s.tangent[1]));
  if (s.tangent[1] == zero_tangent) return s.choose(is_second, zero_tangent, s.choose(is_first, s.tangent[0], both));
  return s.choose(is_first, s.tangent[0], s.choose(is_second, s.tangent[1], both));
}

ValueId d_min(const Step& s) { return d_extreme(s, s.graph.make(Op::lt, s.arg[0], s.arg[1]), s.graph.make(Op::lt, s.arg[1], s.arg[0])); }

ValueId d_max(const Step& s) { return d_extreme(s, s.graph.make(Op::lt, s.arg[1], s.arg[0]), s.graph.make(Op::lt, s.arg[0], s.arg[1])); }

ValueId d_pow(const Step& s) {  // e x^(e - 1) dx + x^e log(x) de; the first term is 0 at e = 0, the second at x = 0
  ValueId by_base = zero_tangent, by_exponent = zero_tangent;
  if (s.tangent[0] != zero_tangent) {
    const ValueId less = s.graph.make(Op::sub, s.arg[1], s.graph.real(1));
    const ValueId slope = s.graph.make(Op::mul, s.arg[1], s.graph.make(Op::pow, s.arg[0], less));
    by_base = s.choose(s.graph.make(Op::eq, s.arg[1], s.graph.real(0)), zero_tangent, s.scaled(slope, s.tangent[0]));
  }
  if (s.tangent[1] != zero_tangent) {
    const ValueId slope = s.graph.make(Op::mul, s.self, s.graph.make(Op::log, s.arg[0]));
    by_exponent = s.choose(s.graph.make(Op::eq, s.arg[0], s.graph.real(0)), zero_tangent, s.scaled(slope, s.tangent[1]));
  }
  return s.sum(by_base, by_exponent);
}

// Abbreviations for the table: V value, I integer value, D derivative.
#define V(expression) [](Type type, double a, double b, double c) -> double { return (void)type, (void)a, (void)b, (void)c, (expression); }
#define I(expression) [](Int a, Int b) -> Int { return (void)a, (void)b, (expression); }
#define D(expression) [](const Step& s) -> ValueId { return (expression); }

namespace rule = interval_rules;

// How operations run on a GPU. The periodic ones reduce any argument first.
constexpr GpuCost quotient_by_reciprocal{.approximate = true};
constexpr GpuCost root{.special = true, .approximate = true}, exact_root{.special = true};
constexpr GpuCost exponential{.instructions = 6, .special = true, .approximate = true};
constexpr GpuCost periodic{.instructions = 60, .special = true, .approximate = true};
constexpr GpuCost library_call{.instructions = 20}, exact_remainder{.instructions = 45};

struct Facts {
  Op op;
  decltype(OpRow::value) value = nullptr;
  decltype(OpRow::of_integers) of_integers = nullptr;
  decltype(OpRow::derivative) derivative = nullptr;
  decltype(OpRow::interval) interval = nullptr;
  std::string_view cuda_real = {}, cuda_integer = {};
  GpuCost gpu = {};
};

constexpr Facts facts[] = {
    {Op::real_const},
    {Op::integer_const},
    {Op::boolean_const},
    {Op::score},
    {Op::batch},
    {Op::head},
    {Op::q_idx},
    {Op::kv_idx},
    {Op::seqlen_q},
    {Op::seqlen_kv},
    {Op::read},
    {Op::add, V(a + b), I(wrapped(a, b, std::plus())), D(s.sum(s.tangent[0], s.tangent[1])), rule::add, "($0 + $1)", "($0 + $1)"},
    {Op::sub, V(a - b), I(wrapped(a, b, std::minus())), D(s.difference(s.tangent[0], s.tangent[1])), rule::sub, "($0 - $1)", "($0 - $1)"},
    {Op::mul, V(a* b), I(wrapped(a, b, std::multiplies())), D(s.sum(s.scaled(s.arg[1], s.tangent[0]), s.scaled(s.arg[0], s.tangent[1]))),
     rule::mul, "($0 * $1)", "($0 * $1)"},
    {Op::div, V(a / b), nullptr, d_div, rule::div, "fv_divide($0, $1)", "", quotient_by_reciprocal},
    {Op::floor_div, V(floor_quotient(type, a, b)), I(quotient(a, b)), nullptr, rule::floor_div, "fv_floor_div($0, $1)",
     "fv_floor_div($0, $1)", exact_remainder},
    {Op::mod, V(floor_remainder(type, a, b)), I(rest(a, b)), d_mod, rule::mod, "fv_mod($0, $1)", "fv_mod($0, $1)", exact_remainder},
    {Op::neg, V(-a), I(negated(a)), D(s.difference(zero_tangent, s.tangent[0])), rule::neg, "(-$0)", "(-$0)"},
    {Op::abs, V(std::abs(a)), I(a < 0 ? negated(a) : a), d_abs, rule::abs, "fv_abs($0)", "fv_abs($0)"},
    {Op::min, V(b < a || std::isnan(b) ? b : a), I(b < a ? b : a), d_min, rule::min, "fv_min($0, $1)", "fv_min($0, $1)"},
    {Op::max, V(a < b || std::isnan(b) ? b : a), I(a < b ? b : a), d_max, rule::max, "fv_max($0, $1)", "fv_max($0, $1)"},
    {Op::exp, V(std::exp(a)), nullptr, D(s.scaled(s.self, s.tangent[0])), rule::exp, "fv_exp($0)", "", exponential},
    {Op::exp2, V(std::exp2(a)), nullptr, D(s.scaled(times_constant(s, std::numbers::ln2, s.self), s.tangent[0])), rule::exp2, "fv_exp2($0)",
     "", exponential},
    {Op::log, V(std::log(a)), nullptr, D(s.scaled(s.graph.make(Op::div, s.graph.real(1), s.arg[0]), s.tangent[0])), rule::log, "fv_log($0)",
     "", exponential},
    {Op::log2, V(std::log2(a)), nullptr, D(s.scaled(s.graph.make(Op::div, s.graph.real(std::numbers::log2e), s.arg[0]), s.tangent[0])),
     rule::log2, "fv_log2($0)", "", exponential},
    {Op::sqrt, V(std::sqrt(a)), nullptr, D(s.scaled(s.graph.make(Op::div, s.graph.real(0.5), s.self), s.tangent[0])), rule::sqrt,
     "fv_sqrt($0)", "", root},
    {Op::rsqrt, V(1 / std::sqrt(a)), nullptr, d_rsqrt, rule::rsqrt, "fv_rsqrt($0)", "", exact_root},
    {Op::tanh, V(std::tanh(a)), nullptr, d_tanh, rule::tanh, "fv_tanh($0)", "", exponential},
    {Op::sigmoid, V(1 / (1 + std::exp(-a))), nullptr, d_sigmoid, rule::sigmoid, "fv_sigmoid($0)", "", exponential},
    {Op::sin, V(std::sin(a)), nullptr, D(s.scaled(s.graph.make(Op::cos, s.arg[0]), s.tangent[0])), rule::sin, "fv_sin($0)", "", periodic},
    {Op::cos, V(std::cos(a)), nullptr, D(s.scaled(s.graph.make(Op::neg, s.graph.make(Op::sin, s.arg[0])), s.tangent[0])), rule::cos,
     "fv_cos($0)", "", periodic},
    {Op::tan, V(std::tan(a)), nullptr, d_tan, rule::tan, "fv_tan($0)", "", periodic},
    {Op::erf, V(std::erf(a)), nullptr, d_erf, rule::erf, "fv_erf($0)", "", library_call},
    {Op::floor, V(std::floor(a)), nullptr, nullptr, rule::floor, "fv_floor($0)", ""},
    {Op::pow, V(std::pow(a, b)), nullptr, d_pow, rule::pow, "fv_pow($0, $1)", "", periodic},
    {Op::stop_gradient, V(a), nullptr, nullptr, rule::stop_gradient, "($0)", ""},
    {Op::eq, V(a == b), I(a == b), nullptr, rule::eq, "($0 == $1)", "($0 == $1)"},
    {Op::ne, V(a != b), I(a != b), nullptr, rule::ne, "($0 != $1)", "($0 != $1)"},
    {Op::lt, V(a < b), I(a < b), nullptr, rule::lt, "($0 < $1)", "($0 < $1)"},
    {Op::le, V(a <= b), I(a <= b), nullptr, rule::le, "($0 <= $1)", "($0 <= $1)"},
    {Op::logical_and, V(a != 0 && b != 0), I(a& b), nullptr, rule::logical_and, "", "($0 & $1)"},
    {Op::logical_or, V(a != 0 || b != 0), I(a | b), nullptr, rule::logical_or, "", "($0 | $1)"},
    {Op::logical_not, V(a == 0), I(a == 0), nullptr, rule::logical_not, "", "(!$0)"},
    {Op::logical_xor, V((a != 0) != (b != 0)), I(a ^ b), nullptr, rule::logical_xor, "", "($0 ^ $1)"},
    {Op::bit_and, V(of_small(a, b, [](auto x, auto y) { return x & y; })), I(a& b), nullptr, rule::bit_and, "", "($0 & $1)"},
    {Op::bit_or, V(of_small(a, b, [](auto x, auto y) { return x | y; })), I(a | b), nullptr, rule::bit_or, "", "($0 | $1)"},
    {Op::bit_xor, V(of_small(a, b, [](auto x, auto y) { return x ^ y; })), I(a ^ b), nullptr, rule::bit_xor, "", "($0 ^ $1)"},
    {Op::shift_left, V(a* std::exp2(std::clamp(b, 0.0, 63.0))), I(shifted_left(a, b)), nullptr, rule::shift_left, "",
     "fv_shift_left($0, $1)"},
    {Op::shift_right, V(of_small(a, b, [](Int x, Int y) { return x >> shift_count(y); })), I(a >> shift_count(b)), nullptr,
     rule::shift_right, "", "fv_shift_right($0, $1)"},
    {Op::select, V(a != 0 ? b : c), nullptr, D(s.choose(s.arg[0], s.tangent[1], s.tangent[2])), rule::select, "($0 ? $1 : $2)",
     "($0 ? $1 : $2)"},
    {Op::to_real, V(a), nullptr, nullptr, rule::to_real, "real($0)", "real($0)"},
    {Op::to_integer, V(static_cast<double>(truncated(a))), nullptr, nullptr, rule::to_integer, "fv_truncated<int>($0)", "int($0)"},
    {Op::to_boolean, V(a != 0), I(a != 0), nullptr, rule::to_boolean, "($0 != 0)", "($0 != 0)"},
    {Op::to_int32, V(static_cast<double>(low_word(truncated(a)))), I(low_word(a)), nullptr, rule::to_int32, "", "int($0)"},
    {Op::to_float32, V(to_float32(a)), nullptr, D(s.tangent[0]), rule::to_float32, "fv_to_float32($0)", ""},
    {Op::to_bfloat16, V(to_bfloat16(a)), nullptr, D(s.tangent[0]), rule::to_bfloat16, "fv_to_bfloat16($0)", ""},
    {Op::to_float16, V(to_float16(a)), nullptr, D(s.tangent[0]), rule::to_float16, "fv_to_float16($0)", ""},
};

#undef V
#undef I
#undef D

struct Declaration {
  Op op;
  std::string_view name;
  std::string_view text;
  int arity;
  std::string_view signature;
};

constexpr Declaration declarations[] = {
#define FOVEAL_X(op, text, arity, signature) {Op::op, #op, text, arity, signature},
    FOVEAL_SCORE_OPS(FOVEAL_X)
#undef FOVEAL_X
};

constexpr std::size_t op_count = std::size(declarations);

constexpr bool rows_in_order() {
  for (std::size_t i = 0; i < op_count; ++i)
    if (facts[i].op != declarations[i].op || static_cast<std::size_t>(facts[i].op) != i) return false;
  return true;
}
static_assert(std::size(facts) == op_count, "ops.cpp: one row for each row of FOVEAL_SCORE_OPS");
static_assert(rows_in_order(), "ops.cpp: rows in the order of FOVEAL_SCORE_OPS");

constexpr std::array<OpRow, op_count> make_rows() {
  std::array<OpRow, op_count> rows{};
  for (std::size_t i = 0; i < op_count; ++i) {
    const Declaration& d = declarations[i];
    const Facts& f = facts[i];
    rows[i] = {d.op,          d.name,       d.text,     d.arity,     d.signature,    f.value,
               f.of_integers, f.derivative, f.interval, f.cuda_real, f.cuda_integer, f.gpu};
  }
  return rows;
}

constexpr std::array<OpRow, op_count> rows = make_rows();

}  // namespace

std::span<const OpRow> op_rows() { return rows; }

bool may_overflow(Op op) {
  return op == Op::add || op == Op::sub || op == Op::mul || op == Op::floor_div || op == Op::neg || op == Op::abs || op == Op::shift_left;
}

bool overflows(Op op, std::int64_t a, std::int64_t b) {
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::int64_t result = 0;
  switch (op) {
    case Op::add:
      return __builtin_add_overflow(a, b, &result);
    case Op::sub:
      return __builtin_sub_overflow(a, b, &result);
    case Op::mul:
      return __builtin_mul_overflow(a, b, &result);
    case Op::floor_div:
      return a == least && b == -1;
    case Op::neg:
    case Op::abs:
      return a == least;
    case Op::shift_left:
      return shifted_left(a, b) >> shift_count(b) != a;
    default:
      return false;
  }
}

std::int64_t truncated(double x) {
  if (std::isnan(x)) return 0;
  if (x >= 0x1p63) return std::numeric_limits<std::int64_t>::max();
  return x <= -0x1p63 ? std::numeric_limits<std::int64_t>::min() : static_cast<std::int64_t>(x);
}

}  // namespace foveal::scoring
