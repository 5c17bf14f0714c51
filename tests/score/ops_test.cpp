// Every row of the table of operations: value against the C library, derivative against finite differences, bounds against samples, text.
// A new row is tested by being there; only its value is also written down here, on purpose a second time.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "base/check.h"
#include "score/evaluate.h"
#include "score/node.h"
#include "score/op_table.h"
#include "score/print.h"

namespace foveal {
namespace scoring {
void PrintTo(const OpRow& row, std::ostream* out) { *out << row.name; }
}  // namespace scoring
namespace {

using scoring::Interval;
using scoring::Node;
using scoring::Op;
using scoring::OpRow;
using NodePtr = std::shared_ptr<const Node>;

/// To a significand of so many bits, ties to even.
double rounded(double a, int bits) {
  int exponent = 0;
  const double fraction = std::frexp(a, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

bool rounds(Op op) { return op == Op::to_float32 || op == Op::to_bfloat16 || op == Op::to_float16; }

double python_remainder(double a, double b) { return a - b * std::floor(a / b); }

const std::map<std::string_view, double (*)(double, double, double)>& values() {
  using D = double;
  static const std::map<std::string_view, D (*)(D, D, D)> table = {
      {"+", [](D a, D b, D) { return a + b; }},
      {"*", [](D a, D b, D) { return a * b; }},
      {"/", [](D a, D b, D) { return a / b; }},
      {"//", [](D a, D b, D) { return std::floor(a / b); }},
      {"%", [](D a, D b, D) { return python_remainder(a, b); }},
      {"abs", [](D a, D, D) { return std::fabs(a); }},
      {"min", [](D a, D b, D) { return std::fmin(a, b); }},
      {"max", [](D a, D b, D) { return std::fmax(a, b); }},
      {"exp", [](D a, D, D) { return std::exp(a); }},
      {"exp2", [](D a, D, D) { return std::pow(2, a); }},
      {"log", [](D a, D, D) { return std::log(a); }},
      {"log2", [](D a, D, D) { return std::log(a) / std::log(2.0); }},
      {"sqrt", [](D a, D, D) { return std::pow(a, 0.5); }},
      {"rsqrt", [](D a, D, D) { return std::pow(a, -0.5); }},
      {"tanh", [](D a, D, D) { return std::sinh(a) / std::cosh(a); }},
      {"sigmoid", [](D a, D, D) { return 0.5 + 0.5 * std::tanh(a / 2); }},
      {"sin", [](D a, D, D) { return std::sin(a); }},
      {"cos", [](D a, D, D) { return std::cos(a); }},
      {"tan", [](D a, D, D) { return std::sin(a) / std::cos(a); }},
      {"erf", [](D a, D, D) { return 1 - std::erfc(a); }},
      {"floor", [](D a, D, D) { return -std::ceil(-a); }},
      {"stop_gradient", [](D a, D, D) { return a; }},
      {"pow", [](D a, D b, D) { return a > 0 ? std::exp(b * std::log(a)) : std::pow(a, b); }},
      {"==", [](D a, D b, D) -> D { return !(a < b) && !(b < a); }},
      {"!=", [](D a, D b, D) -> D { return a < b || b < a; }},
      {"<", [](D a, D b, D) -> D { return b > a; }},
      {"<=", [](D a, D b, D) -> D { return !(a > b); }},
      {"&", [](D a, D b, D) { return a * b; }},
      {"|", [](D a, D b, D) { return a + b - a * b; }},
      {"~", [](D a, D, D) { return 1 - a; }},
      {"^", [](D a, D b, D) { return std::fabs(a - b); }},
      {"where", [](D a, D b, D c) { return a * b + (1 - a) * c; }},
      {"to_real", [](D a, D, D) { return a; }},
      {"to_integer", [](D a, D, D) { return a < 0 ? std::ceil(a) : std::floor(a); }},
      {"to_int32", [](D a, D, D) { return a; }},
      {"to_boolean", [](D a, D, D) -> D { return a != 0; }},
      {"to_float32", [](D a, D, D) { return rounded(a, 24); }},
      {"to_bfloat16", [](D a, D, D) { return rounded(a, 8); }},
      {"to_float16", [](D a, D, D) { return rounded(a, 11); }},
  };
  return table;
}

double floored(double a, double by) { return std::floor(a / by); }

double expected(const OpRow& row, double a, double b, double c) {
  const auto x = static_cast<int>(a), y = static_cast<int>(b);
  const double power = std::pow(2, b < 0 ? 0 : b);
  if (row.op == Op::bit_and) return x - (x & ~y);
  if (row.op == Op::bit_or) return ~(~x & ~y);
  if (row.op == Op::bit_xor) return (x | y) - (x & y);
  if (row.op == Op::shift_left) return a * power;
  if (row.op == Op::shift_right) return floored(a, power);
  if (row.text == "-") return row.arity == 1 ? 0 - a : a + -1 * b;
  return values().at(row.text)(a, b, c);
}

/// The operand types a row may be used with: n both numbers, t any type.
std::vector<std::vector<Type>> operand_types(const OpRow& row) {
  const auto all = [&](char letter) -> std::vector<Type> {
    switch (letter) {
      case 'r':
        return {Type::real};
      case 'i':
        return {Type::integer};
      case 'b':
        return {Type::boolean};
      case 'n':
        return {Type::integer, Type::real};
      default:
        return {Type::boolean, Type::integer, Type::real};
    }
  };
  const std::string_view operands = row.signature.substr(0, row.signature.find('>'));
  std::vector<std::vector<Type>> result;
  for (Type common : all(operands.back())) {
    std::vector<Type> types;
    for (char letter : operands) types.push_back(letter == operands.back() ? common : all(letter).front());
    result.push_back(types);
  }
  return result;
}

Type result_type(const OpRow& row, const std::vector<Type>& operands) {
  switch (row.signature.back()) {
    case 'r':
      return Type::real;
    case 'i':
      return Type::integer;
    case 'b':
      return Type::boolean;
    default:
      return operands.back();
  }
}

class EveryRow : public testing::TestWithParam<OpRow> {
 protected:
  double draw(Type type) {
    if (type == Type::boolean) return static_cast<double>(random_() % 2);
    if (type == Type::integer) return static_cast<double>(random_() % 41) - 20;
    return std::uniform_real_distribution<double>(-3, 3)(random_);
  }
  Interval draw_interval(Type type) {
    const double a = draw(type), b = random_() % 4 == 0 ? a : draw(type);
    return {std::min(a, b), std::max(a, b)};
  }
  double draw_from(Type type, const Interval& range) {
    if (type == Type::real) {
      switch (random_() % 6) {
        case 0:
          return range.low;
        case 1:
          return range.high;
        default:
          return std::uniform_real_distribution<double>(range.low, range.high)(random_);
      }
    }
    return static_cast<double>(std::uniform_int_distribution<int>(static_cast<int>(range.low), static_cast<int>(range.high))(random_));
  }
  static bool integer_by_zero(const OpRow& row, Type type, double divisor) {
    return (row.op == Op::floor_div || row.op == Op::mod) && type == Type::integer && divisor == 0;
  }

  std::mt19937 random_{11};
};

TEST_P(EveryRow, DeclaresItself) {
  const OpRow& row = GetParam();
  EXPECT_EQ(row.op, scoring::row(row.op).op);
  const std::string_view operands = row.signature.substr(0, row.signature.find('>'));
  EXPECT_EQ(static_cast<int>(operands.size()), row.arity);
  ASSERT_NE(row.value, nullptr);
  ASSERT_NE(row.interval, nullptr);
  EXPECT_TRUE(!row.cuda_real.empty() || !row.cuda_integer.empty());
  for (std::string_view spelling : {row.cuda_real, row.cuda_integer})
    for (int i = 0; i < 3 && !spelling.empty(); ++i)
      EXPECT_EQ(spelling.find(base::join('$', i)) != std::string_view::npos, i < row.arity) << spelling;
}

TEST_P(EveryRow, HasItsValue) {
  const OpRow& row = GetParam();
  for (const std::vector<Type>& types : operand_types(row)) {
    for (int trial = 0; trial < 300; ++trial) {
      std::array<double, 3> x{};
      for (std::size_t i = 0; i < types.size(); ++i) x[i] = draw(types[i]);
      const Type type = result_type(row, types);
      if (integer_by_zero(row, type, x[1])) continue;
      const double wanted = expected(row, x[0], x[1], x[2]), found = row.value(type, x[0], x[1], x[2]);
      if (std::isnan(wanted)) {
        EXPECT_TRUE(std::isnan(found)) << row.text << " of " << x[0] << ", " << x[1];
      } else {
        EXPECT_NEAR(found, wanted, 1e-12 * (1 + std::abs(wanted))) << row.text << " of " << x[0] << ", " << x[1];
      }
    }
  }
}

TEST(MinAndMax, KeepANaNOfEitherOperand) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Op op : {Op::min, Op::max})
    for (const auto& [x, y] : {std::pair{nan, 1.0}, {1.0, nan}, {nan, nan}})
      EXPECT_TRUE(std::isnan(scoring::row(op).value(Type::real, x, y, 0))) << scoring::row(op).text << " of " << x << ", " << y;
}

/// The row alone in a score_mod: read parameters a, b, c of rank 0 as its operands.
NodePtr applied(const OpRow& row, const std::vector<Type>& types, std::vector<Param>& params) {
  auto node = std::make_shared<Node>(row.op, result_type(row, types));
  for (std::size_t i = 0; i < types.size(); ++i) {
    params.emplace_back(std::string(1, static_cast<char>('a' + i)), std::vector<std::int64_t>{}, types[i]);
    node->args.push_back(params.back()().node());
  }
  return node;
}

class Scalars : public scoring::ParamReader {
 public:
  std::array<double, 3> x{};
  double read(std::int32_t param, const std::int64_t*) const override { return x[static_cast<std::size_t>(param)]; }
};

TEST_P(EveryRow, HasTheDerivativeOfItsValue) {
  const OpRow& row = GetParam();
  if (row.signature.back() == 'b' || row.signature.back() == 'i') GTEST_SKIP() << "not a real function";
  if (row.op == Op::stop_gradient) GTEST_SKIP() << "has none, see StopGradient";
  if (rounds(row.op)) GTEST_SKIP() << "has that of what it rounds, see Rounding";
  const std::vector<Type> types = operand_types(row).back();
  std::vector<Param> params;
  const Expr expr = Expr(applied(row, types, params));
  std::vector<bool> wants;
  for (Type type : types) wants.push_back(type == Type::real);
  const scoring::ScoreProgram program =
      scoring::compile({.score_mod = expr, .params = params, .wants_gradient = wants, .backward = true, .row_constant_terms_matter = true});
  std::vector<scoring::Scalar> values(program.backward.code.size());
  Scalars scalars;
  int compared = 0;
  for (int trial = 0; trial < 200; ++trial) {
    for (std::size_t i = 0; i < types.size(); ++i) scalars.x[i] = draw(types[i]);
    scoring::evaluate(program.backward, {}, scalars, values.data());
    const std::array<double, 3> x = scalars.x;
    for (std::size_t i = 0; i < types.size(); ++i) {
      if (types[i] != Type::real) continue;
      double found = 0;
      for (const scoring::TrainableRead& read : program.reads)
        if (read.param == static_cast<std::int32_t>(i)) found += values[static_cast<std::size_t>(read.factor)].real;
      const auto at = [&](double step) {
        std::array<double, 3> moved = x;
        moved[i] += step;
        return row.value(Type::real, moved[0], moved[1], moved[2]);
      };
      const double h = 1e-5, wide = (at(2 * h) - at(-2 * h)) / (4 * h), narrow = (at(h) - at(-h)) / (2 * h);
      if (!std::isfinite(narrow) || std::abs(wide - narrow) > 1e-6 * (1 + std::abs(narrow))) continue;  // near a kink or a pole
      EXPECT_NEAR(found, narrow, 1e-5 * (1 + std::abs(narrow))) << row.text << " of " << x[0] << ", " << x[1] << " by operand " << i;
      ++compared;
    }
  }
  EXPECT_GT(compared, row.op == Op::to_real ? -1 : 50);
}

TEST_P(EveryRow, StaysWithinItsBounds) {
  const OpRow& row = GetParam();
  for (const std::vector<Type>& types : operand_types(row)) {
    for (int trial = 0; trial < 500; ++trial) {
      std::array<Interval, 3> range{};
      for (std::size_t i = 0; i < types.size(); ++i) range[i] = draw_interval(types[i]);
      const Type type = result_type(row, types);
      const Interval bounds = row.interval(type, range[0], range[1], range[2]);
      for (int sample = 0; sample < 20; ++sample) {
        std::array<double, 3> x{};
        for (std::size_t i = 0; i < types.size(); ++i) x[i] = draw_from(types[i], range[i]);
        const double value = row.value(type, x[0], x[1], x[2]);
        const bool holds = std::isnan(value) ? bounds.maybe_nan : bounds.low <= value && value <= bounds.high;
        ASSERT_TRUE(holds) << row.text << " of " << x[0] << ", " << x[1] << " is " << value << ", bounds " << bounds.low << " to "
                           << bounds.high;
      }
    }
  }
}

TEST_P(EveryRow, DecidesPoints) {  // a box of one point leaves no doubt about integers and booleans
  const OpRow& row = GetParam();
  for (const std::vector<Type>& types : operand_types(row)) {
    const Type type = result_type(row, types);
    if (type == Type::real || types[0] == Type::real) continue;
    for (int trial = 0; trial < 100; ++trial) {
      std::array<Interval, 3> range{};
      std::array<double, 3> x{};
      for (std::size_t i = 0; i < types.size(); ++i) range[i] = {x[i] = draw(types[i]), x[i]};
      if (integer_by_zero(row, type, x[1])) continue;
      const Interval bounds = row.interval(type, range[0], range[1], range[2]);
      EXPECT_EQ(bounds.low, bounds.high) << row.text;
    }
  }
}

TEST_P(EveryRow, IsReadBackFromItsText) {
  const OpRow& row = GetParam();
  for (const std::vector<Type>& types : operand_types(row)) {
    std::vector<Param> params;
    const Expr expr(applied(row, types, params));
    const std::string text = to_string(expr);
    EXPECT_EQ(to_string(parse(text, params)), text);
    EXPECT_EQ(parse(text, params).type(), result_type(row, types)) << text;
  }
}

std::vector<OpRow> rows_with_operands() {
  std::vector<OpRow> rows;
  for (const OpRow& row : scoring::op_rows())
    if (row.arity > 0) rows.push_back(row);
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryRow, testing::ValuesIn(rows_with_operands()),
                         [](const auto& info) { return std::string(info.param.name); });

/// d score_mod / d a, d score_mod / d b at (a, b), by the backward program.
std::array<double, 2> slopes(const char* score_mod, double a, double b) {
  const std::vector<Param> params{Param("a", {}), Param("b", {})};
  const scoring::ScoreProgram program = scoring::compile({.score_mod = parse(score_mod, params),
                                                          .params = params,
                                                          .wants_gradient = {true, true},
                                                          .backward = true,
                                                          .row_constant_terms_matter = true});
  Scalars scalars;
  scalars.x = {a, b, 0};
  std::vector<scoring::Scalar> values(program.backward.code.size());
  scoring::evaluate(program.backward, {}, scalars, values.data());
  std::array<double, 2> found{};
  for (const scoring::TrainableRead& read : program.reads)
    found[static_cast<std::size_t>(read.param)] += values[static_cast<std::size_t>(read.factor)].real;
  for (const scoring::Instr& instr : program.backward.code) EXPECT_NE(instr.op, Op::stop_gradient) << score_mod;
  return found;
}

TEST(Ops, OfATieEachTakesHalf) {
  using Slopes = std::array<double, 2>;
  EXPECT_EQ(slopes("max(a, b)", 2, 2), (Slopes{0.5, 0.5}));
  EXPECT_EQ(slopes("min(a, b)", 2, 2), (Slopes{0.5, 0.5}));
  EXPECT_EQ(slopes("max(a, b)", 2, 3), (Slopes{0, 1}));
  EXPECT_EQ(slopes("min(a, b)", 2, 3), (Slopes{1, 0}));
  EXPECT_EQ(slopes("max(a, 2.0) + b", 2, 0), (Slopes{0.5, 1}));
  EXPECT_EQ(slopes("pow(a, b)", 0, 0), (Slopes{0, 0}));
}

TEST(Ops, StopGradient) {
  using Slopes = std::array<double, 2>;
  EXPECT_EQ(slopes("stop_gradient(a) * b", 3, 5), (Slopes{0, 3}));
  EXPECT_EQ(slopes("stop_gradient(a * b) + a", 3, 5), (Slopes{1, 0}));
  EXPECT_EQ(slopes("a * exp(stop_gradient(stop_gradient(a))) + b - stop_gradient(b)", 0, 5), (Slopes{1, 1}));
  EXPECT_EQ(stop_gradient(symbols::q_idx).type(), Type::integer);
  EXPECT_EQ(to_string(stop_gradient(to_real(symbols::q_idx))), to_string(to_real(symbols::q_idx)));
}

TEST(Ops, Rounding) {
  using Slopes = std::array<double, 2>;
  EXPECT_EQ(slopes("to_bfloat16(a) * b", 3, 5), (Slopes{5, 3}));
  EXPECT_EQ(slopes("to_float16(to_float32(a * b))", 3, 5), (Slopes{5, 3}));
  const auto text = [](const Expr& x) { return to_string(x); };
  EXPECT_EQ(text(to_float16(Expr(65519.0))), "65504.0");
  EXPECT_EQ(text(to_float16(Expr(65520.0))), "inf");
  EXPECT_EQ(text(to_float16(Expr(-0x1p-25))), text(Expr(-0.0)));
  EXPECT_EQ(text(to_float16(Expr(0x1.8p-24))), text(Expr(0x1p-23)));
  EXPECT_EQ(text(to_bfloat16(Expr(257.0))), "256.0");
  EXPECT_EQ(text(to_bfloat16(Expr(259.0))), "260.0");
  EXPECT_EQ(text(to_float32(Expr(16777217.0))), "16777216.0");
  EXPECT_EQ(text(to_float32(Expr(1e39))), "inf");
  EXPECT_EQ(text(to_bfloat16(to_float32(to_bfloat16(symbols::score)))), text(to_bfloat16(symbols::score)));
}

TEST(Ops, BitsOfIntegers) {
  EXPECT_EQ(to_string(symbols::q_idx & 7), to_string(symbols::q_idx % 8));
  EXPECT_EQ(to_string(symbols::q_idx << 3), to_string(symbols::q_idx * 8));
  EXPECT_EQ(to_string(symbols::q_idx >> 3), to_string(floor_div(symbols::q_idx, 8)));
  EXPECT_EQ(to_string(~symbols::q_idx), to_string(Expr(-1) - symbols::q_idx));
  EXPECT_EQ(to_string(symbols::q_idx ^ symbols::q_idx), "0");
  EXPECT_EQ((Expr(true) & symbols::q_idx).type(), Type::integer);
  EXPECT_EQ((Expr(true) & Expr(true)).type(), Type::boolean);
  EXPECT_THROW(symbols::score & symbols::q_idx, Error);
  EXPECT_THROW(symbols::score << 1, Error);
  EXPECT_EQ(to_string(parse("q_idx ^ kv_idx << head | 5 & kv_idx >> 1")),
            to_string((symbols::q_idx ^ (symbols::kv_idx << symbols::head)) | (5 & (symbols::kv_idx >> 1))));
}

TEST(Ops, LeavesHaveNoFunctions) {
  for (const OpRow& row : scoring::op_rows()) {
    if (row.arity > 0) continue;
    EXPECT_TRUE(row.value == nullptr && row.derivative == nullptr && row.interval == nullptr) << row.name;
  }
}

}  // namespace
}  // namespace foveal
