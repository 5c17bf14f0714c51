// Integers near the ends of 64 bits: wherever no part of an expression leaves 64 bits as it is written, the compiler's program gives the
// exact value, and bounds hold it. The truth is an evaluator in 128 bits that shares nothing with the compiler.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>

#include "foveal/error.h"
#include "score/evaluate.h"
#include "score/interval.h"
#include "score/node.h"
#include "score/program.h"

namespace foveal {
namespace {

using namespace symbols;
using scoring::Node;
using scoring::Op;
using scoring::Point;
__extension__ using Wide = __int128;

constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min(), most = std::numeric_limits<std::int64_t>::max();

struct Data : scoring::ParamReader {
  std::vector<std::int64_t> values[2];
  double read(std::int32_t, const std::int64_t*) const override { return 0; }
  std::int64_t read_integer(std::int32_t param, const std::int64_t* index) const override {
    return values[param][static_cast<std::size_t>(std::clamp<std::int64_t>(index[0], 0, 7))];
  }
};

/// Nothing if some part leaves 64 bits.
std::optional<Wide> exact(const Node& node, const Point& point, const Data& data) {
  std::vector<Wide> arg;
  for (const auto& operand : node.args) {
    const std::optional<Wide> value = exact(*operand, point, data);
    if (!value) return std::nullopt;
    arg.push_back(*value);
  }
  const auto floored = [](Wide a, Wide b) { return b == 0 ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0)); };
  const auto value = [&]() -> Wide {
    switch (node.op) {
      case Op::integer_const:
      case Op::boolean_const:
        return node.integer;
      case Op::q_idx:
        return point.q_idx;
      case Op::kv_idx:
        return point.kv_idx;
      case Op::read: {
        const auto index = static_cast<std::int64_t>(arg[0]);
        return data.read_integer(node.param->name == "a" ? 0 : 1, &index);
      }
      case Op::add:
        return arg[0] + arg[1];
      case Op::sub:
        return arg[0] - arg[1];
      case Op::mul:
        return arg[0] * arg[1];
      case Op::floor_div:
        return floored(arg[0], arg[1]);
      case Op::mod:
        return arg[1] == 0 ? 0 : arg[0] - floored(arg[0], arg[1]) * arg[1];
      case Op::neg:
        return -arg[0];
      case Op::abs:
        return arg[0] < 0 ? -arg[0] : arg[0];
      case Op::min:
        return std::min(arg[0], arg[1]);
      case Op::max:
        return std::max(arg[0], arg[1]);
      case Op::bit_or:
        return static_cast<std::int64_t>(arg[0]) | static_cast<std::int64_t>(arg[1]);
      case Op::select:
        return arg[0] != 0 ? arg[1] : arg[2];
      case Op::eq:
        return arg[0] == arg[1];
      case Op::ne:
        return arg[0] != arg[1];
      case Op::lt:
        return arg[0] < arg[1];
      case Op::le:
        return arg[0] <= arg[1];
      case Op::logical_and:
        return arg[0] & arg[1];
      case Op::logical_or:
        return arg[0] | arg[1];
      case Op::logical_not:
        return arg[0] == 0;
      default:
        ADD_FAILURE() << "an operation that is not made here: " << static_cast<int>(node.op);
        return 0;
    }
  }();
  if (value < least || value > most) return std::nullopt;
  return value;
}

/// Bounds of a mask at one pair, from the data.
scoring::Interval bounds(const scoring::ScoreProgram& program, const Point& point, Data& data) {
  const auto at = [](std::int64_t x) { return scoring::Interval{static_cast<double>(x), static_cast<double>(x)}; };
  const scoring::DataReadRanges reads(
      program.params, {TensorView(data.values[0].data(), DType::i64, {8}), TensorView(data.values[1].data(), DType::i64, {8})});
  const scoring::Box box{at(0), at(0), at(point.q_idx), at(point.kv_idx), at(0), at(0)};
  return scoring::evaluate(program.mask, box, reads)[program.mask.outputs.front()];
}

class Maker {
 public:
  explicit Maker(unsigned seed) : random_(seed) {
    for (auto& values : data.values)
      for (int i = 0; i < 8; ++i) values.push_back(element());
  }

  int pick(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }

  Expr integer(int depth) {
    if (depth == 0) {
      const Expr leaves[] = {a(q_idx), b(kv_idx), a(kv_idx), b(0), q_idx, kv_idx, Expr(pick(25) - 12), Expr(most - pick(3))};
      return leaves[pick(8)];
    }
    const auto next = [&] { return integer(depth - 1); };
    switch (pick(11)) {
      case 0:
      case 1:
        return next() + next();
      case 2:
      case 3:
        return next() - next();
      case 4:
        return Expr(pick(9) - 4) * next();
      case 5:
        return floor_div(next(), Expr(pick(2) ? pick(9) + 1 : -pick(9) - 1));
      case 6:
        return next() % Expr(pick(2) ? pick(9) + 1 : -pick(9) - 1);
      case 7:
        return abs(next());
      case 8:
        return pick(2) ? min(next(), next()) : max(next(), next());
      case 9:
        return where(boolean(depth - 1), next(), next());
      default:
        return pick(2) ? -next() : next() | Expr(pick(17));
    }
  }

  Expr boolean(int depth) {
    const int below = std::max(depth - 1, 0);
    const int kind = pick(depth == 0 ? 5 : 9);
    if (kind == 5) return !boolean(below);
    if (kind == 6) return boolean(below) & boolean(below);
    if (kind == 7) return boolean(below) | boolean(below);
    const Expr left = integer(below), right = integer(below);
    return kind == 0 ? left == right : kind == 1 ? left != right : kind == 2 ? left < right : kind == 3 ? left >= right : left <= right;
  }

  Param a{"a", {8}, Type::integer}, b{"b", {8}, Type::integer};
  Data data;

 private:
  std::int64_t element() {
    const std::int64_t ends[] = {least, most, -(std::int64_t{1} << 62), std::int64_t{1} << 62, std::int64_t{1} << 53, 0};
    const std::int64_t end = ends[pick(6)], step = pick(12);
    return end == most ? end - step : end == least ? end + step : end + step - 6;
  }

  std::mt19937 random_;
};

TEST(LargeIntegers, AreExactWhereNothingThatIsWrittenOverflows) {
  long compared = 0, kept = 0;
  for (unsigned seed = 0; seed < 10000; ++seed) {
    Maker make(seed);
    const Expr mask = make.boolean(1 + static_cast<int>(seed % 3));
    scoring::ScoreProgram program;
    try {
      program = scoring::compile({.mask = mask, .params = {make.a, make.b}});
    } catch (const Error& error) {  // an operation on constants
      ASSERT_NE(std::string(error.what()).find("does not fit 64 bits"), std::string::npos) << error.what();
      continue;
    }
    std::vector<scoring::Scalar> values(program.mask.code.size());
    for (int q = 0; q < 4; ++q)
      for (int kv = 0; kv < 4; ++kv) {
        const Point point{.q_idx = 2 * q, .kv_idx = 2 * kv};
        const std::optional<Wide> wanted = exact(*mask.node(), point, make.data);
        if (!wanted) continue;
        const bool found = program.mask.empty() || scoring::evaluate(program.mask, point, make.data, values.data()) != 0;
        ASSERT_EQ(found, *wanted != 0) << "seed " << seed << " at " << point.q_idx << ", " << point.kv_idx << ": " << program.text << "\na "
                                       << testing::PrintToString(make.data.values[0]) << "\nb "
                                       << testing::PrintToString(make.data.values[1]);
        ++compared, kept += found;
        if (program.mask.empty() || q != kv) continue;
        const scoring::Interval held = bounds(program, point, make.data);
        ASSERT_TRUE(held.low <= found && found <= held.high)
            << "seed " << seed << " at " << point.q_idx << ", " << point.kv_idx << ": " << program.text;
      }
  }
  EXPECT_GT(compared, 25000);
  EXPECT_GT(kept, compared / 4);
  EXPECT_LT(kept, compared - compared / 4);
}

}  // namespace
}  // namespace foveal
