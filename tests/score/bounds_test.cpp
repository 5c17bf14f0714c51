// Interval analysis: differences, reads, index checks, and ranges taken from data.
#include "score/bounds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/dtype.h"
#include "foveal/masks.h"
#include "score/program.h"

namespace foveal {
namespace {

using namespace symbols;
using scoring::Box;
using scoring::IndexVerdict;
using scoring::Interval;
using scoring::ReadRanges;

Box box(Interval q, Interval kv) { return {{0, 1}, {0, 3}, q, kv, {128, 128}, {128, 128}}; }

Interval keep(const Expr& mask, const Box& where, const std::vector<Param>& params = {}, const ReadRanges& reads = ReadRanges()) {
  const scoring::ScoreProgram program = scoring::compile({.mask = mask, .params = params});
  return scoring::evaluate(program.mask, where, reads)[program.mask.outputs.front()];
}

bool all(const Interval& x) { return x.low == 1; }
bool none(const Interval& x) { return x.high == 0; }

TEST(Bounds, ComparisonsLookAtTheDifference) {
  const Box near = box({64, 127}, {0, 63}), same = box({64, 127}, {64, 127}), ahead = box({0, 63}, {64, 127});
  EXPECT_TRUE(all(keep(causal(), near)));
  EXPECT_TRUE(none(keep(causal(), ahead)));
  EXPECT_FALSE(all(keep(causal(), same)) || none(keep(causal(), same)));
  EXPECT_TRUE(all(keep(abs(q_idx - kv_idx) <= 63, same)));
  EXPECT_TRUE(all(keep(2 * q_idx - (q_idx + 3) - kv_idx > -67, same)));
  EXPECT_TRUE(none(keep(floor_div(q_idx, 64) == floor_div(kv_idx, 64), near)));
  EXPECT_TRUE(all(keep(floor_div(q_idx, 64) == floor_div(kv_idx, 64), same)));
  EXPECT_TRUE(all(keep(q_idx % 64 >= 0, near)));
  EXPECT_TRUE(all(keep((kv_idx < 8) | causal(), near)));
}

TEST(Bounds, ReadsThatNobodyKnowsStayUnknown) {
  const Param ids{"ids", {128}, Type::integer};
  const Interval result = keep(document(ids), box({0, 1}, {2, 3}), {ids});
  EXPECT_TRUE(result.low == 0 && result.high == 1);
}

std::vector<scoring::IndexCheck> checks(const Expr& score_mod, const std::vector<Param>& params, const Expr& mask = {}) {
  const scoring::ScoreProgram program = scoring::compile({.score_mod = score_mod, .mask = mask, .params = params});
  return scoring::check_reads(program.forward, program.params, box({0, 127}, {0, 127}), ReadRanges(), program.mask);
}

TEST(Bounds, IndicesAreJudged) {
  const Param b{"b", {128}}, t{"t", {4, 17}}, ids{"ids", {128}, Type::integer};
  EXPECT_EQ(checks(score + b(q_idx), {b}).at(0).verdict, IndexVerdict::always_inside);
  EXPECT_EQ(checks(score + b(abs(q_idx - kv_idx)), {b}).at(0).verdict, IndexVerdict::always_inside);
  EXPECT_EQ(checks(score + b(q_idx - kv_idx), {b}).at(0).verdict, IndexVerdict::undecided);
  EXPECT_EQ(checks(score + b(q_idx + 128), {b}).at(0).verdict, IndexVerdict::never_inside);
  EXPECT_EQ(checks(score + b(-1 - kv_idx), {b}).at(0).verdict, IndexVerdict::never_inside);
  EXPECT_EQ(checks(score + b(ids(q_idx)), {b, ids}).at(1).verdict, IndexVerdict::undecided);
  const auto two = checks(score + t(head, clamp(kv_idx - q_idx, -8, 8) + 8), {t});
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].verdict, IndexVerdict::always_inside);
  EXPECT_EQ(two[1].verdict, IndexVerdict::always_inside);
  EXPECT_EQ(two[1].index.high, 16);
}

TEST(Bounds, TheMaskIsKnownToHold) {
  const Param b{"b", {128}}, narrow{"narrow", {33}};
  EXPECT_EQ(checks(score + b(q_idx - kv_idx), {b}, causal()).at(0).verdict, IndexVerdict::always_inside);
  EXPECT_EQ(checks(score + narrow(q_idx - kv_idx), {narrow}, causal()).at(0).verdict, IndexVerdict::undecided);
  EXPECT_EQ(checks(score + narrow(q_idx - kv_idx), {narrow}, causal() & window(32)).at(0).verdict, IndexVerdict::always_inside);
  EXPECT_EQ(checks(score + narrow(kv_idx - q_idx + 16), {narrow}, window(16)).at(0).verdict, IndexVerdict::always_inside);
  EXPECT_EQ(checks(score + narrow(kv_idx), {narrow}, causal()).at(0).verdict, IndexVerdict::undecided);
  EXPECT_EQ(checks(score + narrow(kv_idx - q_idx), {narrow}, q_idx > kv_idx).at(0).verdict, IndexVerdict::never_inside);
  EXPECT_EQ(checks(where(kv_idx <= q_idx, score + b(q_idx - kv_idx), -std::numeric_limits<double>::infinity()), {b}).at(0).verdict,
            IndexVerdict::always_inside);
}

TEST(Bounds, IntegersBeyond64Bits) {
  const auto overflow = [](const Expr& score_mod) {
    const scoring::ScoreProgram program = scoring::compile({.score_mod = score_mod});
    return scoring::beyond_64_bits(program.forward,
                                   scoring::evaluate(program.forward, box({0, 1 << 20}, {0, 1 << 20}), ReadRanges()).span());
  };
  EXPECT_FALSE(overflow(score + (q_idx - kv_idx)));
  EXPECT_FALSE(overflow(score + q_idx * kv_idx * q_idx));
  EXPECT_TRUE(overflow(score + q_idx * kv_idx * q_idx * kv_idx));
  EXPECT_FALSE(overflow(score + to_real(q_idx * kv_idx * q_idx) * kv_idx));
  const Param a{"a", {1}, Type::integer}, b{"b", {1}, Type::integer};
  const auto quotient = [&](std::int64_t x, std::int64_t y) {
    const scoring::ScoreProgram program = scoring::compile({.mask = floor_div(a(0), b(0)) > 0, .params = {a, b}});
    const scoring::DataReadRanges reads(program.params, {TensorView(&x, DType::i64, {1}), TensorView(&y, DType::i64, {1})});
    return scoring::beyond_64_bits(program.mask, scoring::evaluate(program.mask, box({0, 0}, {0, 0}), reads).span());
  };
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min(), most = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(quotient(least, -1));
  EXPECT_FALSE(quotient(least, 1));
  EXPECT_FALSE(quotient(most, -1));
}

/// Doubles do not tell these apart: bounds must not say that they are equal.
TEST(Bounds, LargeIntegersAreNotRounded) {
  const Param ids{"ids", {2}, Type::integer};
  const std::int64_t far = std::int64_t{1} << 60, data[] = {far, far + 1};
  const TensorView tensor = TensorView(const_cast<std::int64_t*>(data), DType::i64, {2});
  const scoring::ScoreProgram program = scoring::compile({.mask = ids(q_idx) == ids(kv_idx), .params = {ids}});
  const scoring::DataReadRanges reads(program.params, {tensor});
  const auto kept = [&](double q, double kv) {
    return scoring::evaluate(program.mask, box({q, q}, {kv, kv}), reads)[program.mask.outputs.front()];
  };
  EXPECT_EQ(kept(0, 1).low, 0);
  EXPECT_EQ(kept(0, 0).high, 1);
}

/// Partial sums of 2^62 whose difference is a small number.
TEST(Bounds, SumsThatCancelAreRounded) {
  const Expr mask = 2041642190 * q_idx - 1414579300 * kv_idx == 814912030;
  EXPECT_EQ(keep(mask, box({553293787, 553293787}, {798561055, 798561055})).high, 1);
  EXPECT_TRUE(none(keep(mask, box({553293787, 553293787}, {798561056, 798561056}))));
  const Param a{"a", {1}, Type::integer}, b{"b", {1}, Type::integer};
  std::mt19937_64 random(1);
  for (int i = 0; i < 5000; ++i) {
    const auto pick = [&](std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random); };
    const std::int64_t m = pick(1, 1 << 20), n = pick(1, 1 << 20), x = pick(0, std::int64_t{1} << 42), y = m * x / n;
    std::int64_t data[] = {x, y};
    const scoring::ScoreProgram program = scoring::compile({.mask = m * a(0) - n * b(0) + kv_idx == 3 + m * x - n * y, .params = {a, b}});
    const scoring::DataReadRanges reads(program.params, {TensorView(&data[0], DType::i64, {1}), TensorView(&data[1], DType::i64, {1})});
    const auto kept = [&](double kv) {
      return scoring::evaluate(program.mask, box({0, 0}, {kv, kv}), reads)[program.mask.outputs.front()];
    };
    ASSERT_EQ(kept(3).high, 1) << program.text << " of " << x << ", " << y;
    ASSERT_EQ(kept(4).low, 0) << program.text << " of " << x << ", " << y;
  }
}

/// The multiple of 7 below -(2^53 - 1) is no double.
TEST(Bounds, RemaindersAreExact) {
  const Param a{"a", {1}, Type::integer};
  const scoring::ScoreProgram program = scoring::compile({.mask = abs(a(0)) % -7 + a(0) % 8 == 1, .params = {a}});
  for (std::int64_t x = (std::int64_t{1} << 53) - 40; x < (std::int64_t{1} << 53) + 40; ++x) {
    const scoring::DataReadRanges reads(program.params, {TensorView(&x, DType::i64, {1})});
    const Interval kept = scoring::evaluate(program.mask, box({0, 0}, {0, 0}), reads)[program.mask.outputs.front()];
    const bool keeps = (x + 6) % 7 - 6 + x % 8 == 1;
    EXPECT_TRUE(kept.low <= keeps && keeps <= kept.high) << x;
  }
}

/// Kernels in single precision count them as 0.
TEST(Bounds, SubnormalNumbersMayBeZero) {
  const Param x{"x", {2}};
  const float data[] = {1e-40f, 0};
  const scoring::ScoreProgram program = scoring::compile({.mask = (x(kv_idx) > 0.0) | (Expr(1e-40) * x(0) > 1.0), .params = {x}});
  const scoring::DataReadRanges reads(program.params, {TensorView(const_cast<float*>(data), DType::f32, {2})});
  const Interval result = scoring::evaluate(program.mask, box({0, 0}, {0, 0}), reads)[program.mask.outputs.front()];
  EXPECT_TRUE(result.low == 0 && result.high == 1);
}

/// The truth: every element of the box, one by one.
Interval brute_force(const std::vector<double>& data, const std::vector<std::int64_t>& shape, const std::vector<Interval>& index) {
  Interval range{INFINITY, -INFINITY};
  for (std::size_t n = 0; n < data.size(); ++n) {
    bool inside = true;
    std::size_t rest = n;
    for (std::size_t i = shape.size(); i-- > 0;) {
      const auto at = static_cast<double>(rest % static_cast<std::size_t>(shape[i]));
      rest /= static_cast<std::size_t>(shape[i]);
      const double top = static_cast<double>(shape[i] - 1);
      inside &= std::clamp(index[i].low, 0.0, top) <= at && at <= std::clamp(index[i].high, 0.0, top);
    }
    if (!inside) continue;
    range.low = std::min(range.low, data[n]);
    range.high = std::max(range.high, data[n]);
  }
  return range;
}

TEST(DataReadRanges, AreTheExactRangesOfTheData) {
  std::mt19937 random(3);
  const std::vector<std::vector<std::int64_t>> shapes{{}, {1}, {7}, {1000}, {3, 77}, {130, 65}, {2, 3, 20, 30}};
  for (const DType dtype :
       {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::i16, DType::i8, DType::u8, DType::boolean})
    for (const std::int64_t step : {1, 2})  // of every second element, strides are honoured
      for (const std::vector<std::int64_t>& shape : shapes) {
        std::int64_t size = 1;
        for (std::int64_t extent : shape) size *= extent;
        std::vector<double> storage(static_cast<std::size_t>(size * step)),
            data(static_cast<std::size_t>(size));  // at least as large as any type
        TensorView view;
        view.data = storage.data();
        view.dtype = dtype;
        view.rank = static_cast<int>(shape.size());
        std::int64_t stride = step;
        for (std::size_t i = shape.size(); i-- > 0;) {
          view.sizes[i] = shape[i];
          view.strides[i] = stride;
          stride *= shape[i];
        }
        for (std::int64_t n = 0; n < size; ++n) {
          base::store(view.data, dtype, n * step, static_cast<double>(static_cast<int>(random() % 2001) - 1000));
          data[static_cast<std::size_t>(n)] = base::load(view.data, dtype, n * step);
        }
        const scoring::DataReadRanges ranges({{"p", shape, Type::real}}, {view});
        for (int trial = 0; trial < 50; ++trial) {
          std::vector<Interval> index;
          for (std::int64_t extent : shape) {
            const double a = static_cast<double>(static_cast<std::int64_t>(random() % static_cast<unsigned>(extent + 6)) - 3);
            index.push_back({a, a + static_cast<double>(random() % static_cast<unsigned>(extent + 1))});
          }
          const Interval found = ranges.range(0, index), wanted = brute_force(data, shape, index);
          ASSERT_EQ(found.low, wanted.low) << to_string(dtype) << " step " << step;
          ASSERT_EQ(found.high, wanted.high) << to_string(dtype) << " step " << step;
          ASSERT_FALSE(found.maybe_nan);
        }
      }
}

TEST(DataReadRanges, KnowNoMoreThanTheyAreGiven) {
  float with_nan[4] = {1, NAN, 2, 3};
  const TensorView seen(with_nan, DType::f32, {4}), absent(nullptr, DType::f32, {4});
  const scoring::DataReadRanges ranges({{"seen", {4}, Type::real}, {"absent", {4}, Type::real}}, {seen, absent});
  const Interval all[] = {{0, 3}}, last[] = {{2, 3}}, first[] = {{0, 0}};
  EXPECT_TRUE(ranges.range(0, all).maybe_nan);
  EXPECT_FALSE(ranges.range(0, last).maybe_nan);
  EXPECT_TRUE(ranges.range(1, first).maybe_nan);
  EXPECT_EQ(ranges.range(1, first).high, INFINITY);
}

TEST(DataReadRanges, EveryDtypeIsRead) {
  const auto value = [](DType dtype, void* data) {
    const TensorView view(data, dtype, {1});
    const Interval first[] = {{0, 0}};
    const Interval range = scoring::DataReadRanges({{"p", {1}, Type::real}}, {view}).range(0, first);
    EXPECT_EQ(range.low, range.high);
    return range.low;
  };
  double f64 = -2.5;
  float f32 = 1.25f;
  std::uint16_t bf16 = 0xc040, f16 = 0xc200, small_f16 = 0x0001;
  std::int64_t i64 = -5000000000;
  std::int32_t i32 = -7;
  std::int16_t i16 = -300;
  std::int8_t i8 = -100;
  std::uint8_t u8 = 200, flag = 1;
  EXPECT_EQ(value(DType::f64, &f64), -2.5);
  EXPECT_EQ(value(DType::f32, &f32), 1.25);
  EXPECT_EQ(value(DType::bf16, &bf16), -3.0);
  EXPECT_EQ(value(DType::f16, &f16), -3.0);
  EXPECT_EQ(value(DType::f16, &small_f16), std::ldexp(1.0, -24));
  EXPECT_EQ(value(DType::i64, &i64), -5000000000.0);
  EXPECT_EQ(value(DType::i32, &i32), -7);
  EXPECT_EQ(value(DType::i16, &i16), -300);
  EXPECT_EQ(value(DType::i8, &i8), -100);
  EXPECT_EQ(value(DType::u8, &u8), 200);
  EXPECT_EQ(value(DType::boolean, &flag), 1);
}

}  // namespace
}  // namespace foveal
