// Every operation of the bf16 tables against plain loops in double: VDPBF16PS, AMX, AMX on the scalar model of its tiles, BFDOT.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/dispatch.h"
#include "cpu/targets.h"
#include "zeroed_memory.h"
#if defined(__x86_64__)
#include "amx_model.h"
#include "cpu/simd/amx.h"
#endif

namespace foveal::cpu {
namespace {

using Bits = std::uint16_t;

float as_float(Bits x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

struct Case {
  const BlockOps<float>* ops;
  bool available;
  int keys, lanes, dim;
  std::int64_t stride;
};

class Bf16OpsTest : public testing::TestWithParam<Case>, protected test::ZeroedMemory {
 protected:
  void SetUp() override {
    if (!GetParam().available) GTEST_SKIP() << "not on this machine";
    if (ops.enter) ops.enter();
  }
  void TearDown() override {
    if (GetParam().available && ops.leave) ops.leave();
  }

  /// Rows of random bf16, `stride` apart within a row; between them lie NaNs.
  std::vector<Bits> random_rows(int rows) {
    std::vector<Bits> values(static_cast<std::size_t>(rows * row_stride), 0x7fc0);
    for (int row = 0; row < rows; ++row) {
      for (int d = 0; d < dim; ++d) {
        values[static_cast<std::size_t>(row * row_stride + d * stride)] =
            static_cast<Bits>(std::bit_cast<std::uint32_t>(normal_(random_)) >> 16);
      }
    }
    return values;
  }
  double value(const std::vector<Bits>& rows, int row, int d) const {
    return double{as_float(rows[static_cast<std::size_t>(row * row_stride + d * stride)])};
  }
  LaneRows lane_rows(const std::vector<Bits>& rows) {
    pointers_.clear();
    for (int lane = 0; lane < padded_lanes; ++lane) pointers_.push_back(lane < lanes ? rows.data() + lane * row_stride : nullptr);
    return {pointers_.data(), padded_lanes, stride, DType::bf16};
  }
  Operand operand(const std::vector<Bits>& rows) {
    return ops.prepare({rows.data(), row_stride, stride, DType::bf16}, keys, dim, {.dot = true, .mix = true},
                       memory<char>(ops.operand_bytes(dim)));
  }
  float* random_tile() {
    float* tile = memory<float>(static_cast<std::size_t>(ops.block_kv * ld) * 4);
    for (int key = 0; key < ops.block_kv; ++key) {
      for (int lane = 0; lane < ld; ++lane) tile[key * ld + lane] = key < keys && lane < padded_lanes ? normal_(random_) : NAN;
    }
    return tile;
  }
  Weights weight_memory() {
    const std::size_t bytes = static_cast<std::size_t>(ops.block_kv * ld) * 2;
    Weights weights{memory<char>(bytes), memory<char>(bytes)};
    std::memset(weights.mix, 0xff, bytes);  // NaN where nothing is written
    std::memset(weights.spread, 0xff, bytes);
    return weights;
  }
  static double mix_weight(const Weights& weights, int key, int lane, int ld) {
    return double{as_float(static_cast<const Bits*>(weights.mix)[(key / 2 * ld + lane) * 2 + key % 2])};
  }
  static double spread_weight(const Weights& weights, int key, int lane, int ld) {
    return double{as_float(static_cast<const Bits*>(weights.spread)[key * ld + lane])};
  }

  const Case& shape = GetParam();
  const BlockOps<float>& ops = *shape.ops;
  const int keys = shape.keys, lanes = shape.lanes, dim = shape.dim;
  const int padded_lanes = round_up(lanes, 16), ld = ops.tile_lanes;
  const std::int64_t stride = shape.stride, row_stride = dim * stride + 3;

  std::mt19937 random_{5};
  std::normal_distribution<float> normal_;

 private:
  std::vector<const void*> pointers_;
};

TEST_P(Bf16OpsTest, Dot) {
  const auto q = random_rows(lanes), k = random_rows(keys);
  void* panel = memory<char>(ops.panel_bytes(dim));
  ops.pack_panel(lane_rows(q), dim, -1.0f, panel);
  float* tile = memory<float>(static_cast<std::size_t>(ops.block_kv * ld) * 4);
  const int begin = keys > ops.key_multiple ? ops.key_multiple : 0;
  ops.dot(operand(k), panel, {begin, keys}, padded_lanes, dim, tile);
  for (int key = begin; key < keys; ++key) {
    for (int lane = 0; lane < padded_lanes; ++lane) {
      double expected = 0;
      for (int d = 0; d < dim && lane < lanes; ++d) expected -= value(k, key, d) * value(q, lane, d);
      ASSERT_NEAR(tile[key * ld + lane], expected, 1e-6 * dim) << key << ' ' << lane;
    }
  }
}

TEST_P(Bf16OpsTest, Mix) {
  const auto v = random_rows(keys);
  const float* p = random_tile();
  const Weights weights = weight_memory();
  const int begin = keys > ops.key_multiple ? ops.key_multiple : 0;
  ops.round_weights(p, {begin, keys}, padded_lanes, weights);
  float* acc = memory<float>(static_cast<std::size_t>(padded_dim(dim) * ld) * 4);
  acc[0] = 2;
  ops.mix(operand(v), weights.mix, {begin, keys}, padded_lanes, dim, acc);
  for (int d = 0; d < dim; ++d) {
    for (int lane = 0; lane < padded_lanes; ++lane) {
      double expected = d == 0 && lane == 0 ? 2 : 0;
      for (int key = begin; key < keys; ++key) {
        const double weight = mix_weight(weights, key, lane, ld);
        ASSERT_NEAR(weight, p[key * ld + lane], std::fabs(p[key * ld + lane]) / 256);
        expected += weight * value(v, key, d);
      }
      ASSERT_NEAR(acc[d * ld + lane], expected, 1e-6 * keys) << d << ' ' << lane;
    }
  }
}

TEST_P(Bf16OpsTest, Spread) {
  const auto rows = random_rows(lanes);
  const float* p = random_tile();
  const Weights weights = weight_memory();
  const int begin = keys > ops.key_multiple ? ops.key_multiple : 0;
  ops.round_weights(p, {begin, keys}, padded_lanes, weights);
  char* packed = memory<char>(ops.rows_bytes(dim));
  std::memset(packed, 0xff, ops.rows_bytes(dim));
  ops.pack_rows(lane_rows(rows), dim, packed);
  const int padded = padded_dim(dim);
  float* acc = memory<float>(static_cast<std::size_t>(ops.block_kv * padded) * 4);
  ops.spread(weights.spread, packed, {begin, keys}, padded_lanes, dim, acc);
  for (int key = 0; key < ops.block_kv; ++key) {
    for (int d = 0; d < padded; ++d) {
      double expected = 0;
      for (int lane = 0; key >= begin && key < keys && d < dim && lane < lanes; ++lane) {
        expected += spread_weight(weights, key, lane, ld) * value(rows, lane, d);
      }
      ASSERT_NEAR(acc[key * padded + d], expected, 1e-6 * lanes) << key << ' ' << d;
    }
  }
}

TEST_P(Bf16OpsTest, Softmax) {
  float* tile = random_tile();
  alignas(64) float max[64], sum[64], factor[64];
  alignas(64) std::int32_t first[64], last[64];
  for (int lane = 0; lane < 64; ++lane) {
    max[lane] = lane % 3 ? -1e30f : 10.0f, sum[lane] = lane % 3 ? 0.0f : 1.0f, factor[lane] = NAN;
    first[lane] = lane % 5, last[lane] = lane % 7 == 0 ? 0 : keys - lane % 4;
  }
  if (keys > 1) tile[ld] = -INFINITY;
  std::vector<float> scores(tile, tile + keys * ld);
  const Weights weights = weight_memory();
  const float multiplier = 30.0f;  // some lanes exceed their maximum by more than 8
  const ScoreScale<float> scale{multiplier, multiplier * 0.6931472f, multiplier / 2, 2, 1.3862944f};
  const bool grew = ops.softmax(tile, {0, keys}, padded_lanes, scale, {first, last}, nullptr, max, sum, factor, {weights.mix, nullptr});
  bool any_growth = false;
  for (int lane = 0; lane < padded_lanes; ++lane) {
    double old = lane % 3 ? -2 * double{1e30f} : 20.0, expected = lane % 3 ? 0.0 : 1.0, top = old;
    const double max2 = 2 * double{max[lane]};
    for (int key = first[lane]; key < last[lane]; ++key)
      top = std::fmax(top, double{scores[static_cast<std::size_t>(key * ld + lane)]} * multiplier);
    ASSERT_GE(max2 + 8.001, top);
    any_growth |= max2 != old;
    if (grew) {
      ASSERT_NEAR(factor[lane], std::exp2(old - max2), 1e-4);
    }
    expected *= std::exp2(old - max2);
    for (int key = 0; key < keys; ++key) {
      const bool kept = key >= first[lane] && key < last[lane];
      const double p = kept ? std::exp2(double{scores[static_cast<std::size_t>(key * ld + lane)]} * multiplier - max2) : 0;
      expected += p;
      ASSERT_NEAR(mix_weight(weights, key, lane, ld), p, p / 200 + 1e-37) << key << ' ' << lane;
    }
    ASSERT_NEAR(sum[lane], expected, 1e-4 * expected);
  }
  EXPECT_EQ(grew, any_growth);
}

TEST_P(Bf16OpsTest, BackwardWeights) {
  float *p = random_tile(), *dp = random_tile();
  std::vector<float> scores(p, p + keys * ld), dps(dp, dp + keys * ld);
  alignas(64) float lse[64], delta[64];
  alignas(64) std::int32_t first[64], last[64];
  for (int lane = 0; lane < 64; ++lane) {
    lse[lane] = lane == 3 ? INFINITY : 0.25f * static_cast<float>(lane % 9), delta[lane] = 0.125f * static_cast<float>(lane % 5);
    first[lane] = lane % 5, last[lane] = keys - lane % 4;
  }
  dp[5] = INFINITY;  // lane 5 begins at row 0, but...
  first[5] = 1;      // ...not for this test: no probability, so no gradient
  const Weights weights = weight_memory(), gradients = weight_memory();
  ops.probabilities(p, {0, keys}, padded_lanes, {1.5f * 1.442695f, 1.5f, 1.5f, 1.442695f, 1}, {first, last}, nullptr, lse,
                    {nullptr, weights.spread});
  ops.score_gradient(p, dp, {0, keys}, padded_lanes, delta, gradients);
  for (int key = 0; key < keys; ++key) {
    for (int lane = 0; lane < padded_lanes; ++lane) {
      const std::size_t i = static_cast<std::size_t>(key * ld + lane);
      const bool kept = key >= first[lane] && key < last[lane];
      const double prob = kept ? std::exp(1.5 * scores[i] - double{lse[lane]}) : 0, ds = kept ? prob * (dps[i] - double{delta[lane]}) : 0;
      ASSERT_NEAR(p[i], prob, 1e-4 * prob + 1e-37);
      ASSERT_NEAR(spread_weight(weights, key, lane, ld), prob, prob / 200 + 1e-37);
      ASSERT_NEAR(mix_weight(gradients, key, lane, ld), ds, std::fabs(ds) / 200 + 1e-37);
      ASSERT_EQ(mix_weight(gradients, key, lane, ld), spread_weight(gradients, key, lane, ld));
    }
  }
}

using Table = std::pair<const BlockOps<float>*, bool>;  ///< and whether this machine runs it

std::vector<Table> tables() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool vectors = __builtin_cpu_supports("avx512bf16");
  return {{&targets::avx512bf16_bf16, vectors}, {&amx_model, vectors}, {&targets::amx_bf16, vectors && amx_bf16_available()}};
#else
  std::vector<Table> all;
  for (const Target& target : all_targets())
    if (target.bf16) all.emplace_back(target.bf16, target.available);
  return all;
#endif
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [ops, available] : tables()) {
    for (const auto& [keys, lanes, dim] : {std::array{ops->block_kv, 64, 64}, std::array{ops->block_kv - 1, 64, 128}, std::array{1, 1, 1},
                                           std::array{37, 33, 65}, std::array{2, 16, 40}, std::array{64, 48, 96}, std::array{50, 20, 7}}) {
      for (const int stride : {1, 2}) all.push_back({ops, available, keys, lanes, dim, stride});
    }
  }
  return all;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Bf16OpsTest);
INSTANTIATE_TEST_SUITE_P(Tables, Bf16OpsTest, testing::ValuesIn(cases()), [](const auto& info) {
  const Case& c = info.param;
  std::string name = std::string(c.ops->name) + "_k" + std::to_string(c.keys) + "_l" + std::to_string(c.lanes) + "_d" +
                     std::to_string(c.dim) + "_s" + std::to_string(c.stride);
  for (char& x : name) x = x == '.' ? '_' : x;
  return name;
});

}  // namespace
}  // namespace foveal::cpu
