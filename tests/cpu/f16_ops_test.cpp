// The f16 tables against the fp32 table of the same target, which converts: scores of the same bits, whatever the layout of queries and keys.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/float_mode.h"
#include "cpu/dispatch.h"
#include "cpu/simd/half.h"
#include "zeroed_memory.h"

namespace foveal::cpu {
namespace {

struct F16Case {
  const Target* target;
  int keys, lanes, dim;
  std::int64_t stride, gap;  ///< between elements; between rows
};

class F16OpsTest : public testing::TestWithParam<F16Case>, protected test::ZeroedMemory {
 protected:
  void SetUp() override {
    if (!shape.target->available) GTEST_SKIP() << shape.target->detail;
  }

  /// Rows of f16: normal, subnormal and large numbers, zeros of both signs; between them lie NaNs.
  std::vector<std::uint16_t> f16_rows(int rows) {
    std::vector<std::uint16_t> values(static_cast<std::size_t>(rows * row_stride), 0x7e00);
    std::normal_distribution<float> normal;
    for (int row = 0; row < rows; ++row)
      for (int d = 0; d < shape.dim; ++d) {
        const unsigned kind = random_() % 16;
        values[static_cast<std::size_t>(row * row_stride + d * shape.stride)] =
            kind < 12 ? to_f16(normal(random_)) : to_f16(normal(random_) * std::array{0.0f, 0x1p-16f, 0x1p-24f, 8000.0f}[kind - 12]);
      }
    return values;
  }

  /// The scores of a table: all lanes and keys from `begin` on.
  std::vector<float> scores(const BlockOps<float>& ops, const std::vector<std::uint16_t>& q, const std::vector<std::uint16_t>& k,
                            float sign, int begin, OperandUse use) {
    std::vector<const void*> rows;
    for (int lane = 0; lane < padded; ++lane) rows.push_back(lane < shape.lanes ? q.data() + lane * row_stride : nullptr);
    char* panel = memory<char>(ops.panel_bytes(shape.dim));
    ops.pack_panel({rows.data(), padded, shape.stride, DType::f16}, shape.dim, sign, panel);
    const Operand operand = ops.prepare({k.data(), row_stride, shape.stride, DType::f16}, shape.keys, shape.dim, use,
                                        memory<char>(ops.operand_bytes(shape.dim)));
    float* tile = memory<float>(static_cast<std::size_t>(ops.block_kv * ops.tile_lanes) * 4);
    ops.dot(operand, panel, {begin, shape.keys}, padded, shape.dim, tile);
    std::vector<float> all;
    for (int key = begin; key < shape.keys; ++key)
      for (int lane = 0; lane < padded; ++lane) all.push_back(tile[key * ops.tile_lanes + lane]);
    // A slice of the lanes, as passes take it.
    const int half = ops.tile_lanes / 2;
    if (padded > half) {
      float* slice = memory<float>(static_cast<std::size_t>(ops.block_kv * ops.tile_lanes) * 4);
      ops.dot(operand, panel + half * ops.panel_lane_bytes, {begin, shape.keys}, padded - half, shape.dim, slice);
      for (int key = begin; key < shape.keys; ++key)
        for (int lane = half; lane < padded; ++lane)
          EXPECT_EQ(std::bit_cast<std::uint32_t>(slice[key * ops.tile_lanes + lane - half]),
                    std::bit_cast<std::uint32_t>(tile[key * ops.tile_lanes + lane]));
    }
    return all;
  }

  const F16Case& shape = GetParam();
  const int padded = round_up(shape.lanes, 16);
  const std::int64_t row_stride = shape.dim * shape.stride + shape.gap;

 private:
  base::FloatScope floats_{base::plain_floats | base::denormals_are_zeros};  // as in a task: subnormal f16 are none in fp32
  std::mt19937 random_{5};
};

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(expected[i])) << i << ": " << got[i] << ' ' << expected[i];
}

TEST_P(F16OpsTest, ScoresHaveTheBitsOfFp32) {
  const auto q = f16_rows(shape.lanes), k = f16_rows(shape.keys);
  for (const float sign : {1.0f, -1.0f})
    for (const bool mix : {false, true})
      for (const int begin : {0, shape.keys > 5 ? 5 : 0}) {
        const OperandUse use{.dot = true, .mix = mix};
        expect_same_bits(scores(*shape.target->f16, q, k, sign, begin, use), scores(*shape.target->f32, q, k, sign, begin, use));
      }
}

TEST_P(F16OpsTest, InfinityAndNaNReachTheirScores) {
  auto q = f16_rows(shape.lanes), k = f16_rows(shape.keys);
  q[0] = 0x7c00;
  k[static_cast<std::size_t>((shape.keys - 1) * row_stride + (shape.dim - 1) * shape.stride)] = 0x7e00;
  const auto got = scores(*shape.target->f16, q, k, 1, 0, {.dot = true});
  const auto expected = scores(*shape.target->f32, q, k, 1, 0, {.dot = true});
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(got[i] == expected[i] || (got[i] != got[i] && expected[i] != expected[i])) << i;
}

TEST_P(F16OpsTest, FindsWhatIsNotFinite) {
  auto rows = f16_rows(shape.keys);
  std::vector<const void*> pointers{nullptr};
  for (int key = 0; key < shape.keys; ++key) pointers.push_back(rows.data() + key * row_stride);
  const auto finite = [&] {
    return shape.target->f16->finite({pointers.data(), static_cast<int>(pointers.size()), shape.stride, DType::f16}, shape.dim);
  };
  EXPECT_TRUE(finite());
  std::uint16_t& last = rows[static_cast<std::size_t>((shape.keys - 1) * row_stride + (shape.dim - 1) * shape.stride)];
  for (const auto& [bits, expected] :
       {std::pair{0xfbff, true}, std::pair{0x7c00, false}, std::pair{0xfc00, false}, std::pair{0x7e01, false}}) {
    last = static_cast<std::uint16_t>(bits);
    EXPECT_EQ(finite(), expected) << bits;
  }
}

/// Where both operands are prepared, mix has its own: rows in fp32.
TEST_P(F16OpsTest, MixHasTheBitsOfFp32) {
  const auto v = f16_rows(shape.keys);
  const auto mixed = [&](const BlockOps<float>& ops) {
    const Operand operand = ops.prepare({v.data(), row_stride, shape.stride, DType::f16}, shape.keys, shape.dim, {.dot = true, .mix = true},
                                        memory<char>(ops.operand_bytes(shape.dim)));
    std::mt19937 random(7);
    float* weights = memory<float>(static_cast<std::size_t>(ops.block_kv * ops.tile_lanes) * 4);
    for (int i = 0; i < ops.block_kv * ops.tile_lanes; ++i) weights[i] = static_cast<float>(random() % 1024) / 1023;
    const auto count = static_cast<std::size_t>(padded_dim(shape.dim) * ops.tile_lanes);
    float* acc = memory<float>(count * 4);
    ops.mix(operand, weights, {0, shape.keys}, padded, shape.dim, acc);
    return std::vector<float>(acc, acc + count);
  };
  expect_same_bits(mixed(*shape.target->f16), mixed(*shape.target->f32));
}

std::vector<F16Case> f16_cases() {
  std::vector<F16Case> all;
  for (const Target& target : all_targets()) {
    if (!target.f16) continue;
    for (const auto& [keys, lanes, dim] :
         {std::array{64, 64, 64}, std::array{63, 64, 128}, std::array{1, 1, 1}, std::array{37, 33, 65}, std::array{2, 16, 40},
          std::array{60, 48, 96}, std::array{50, 20, 7}, std::array{5, 17, 8}, std::array{9, 64, 15}})
      for (const int stride : {1, 2}) all.push_back({&target, keys, lanes, dim, stride, 3});
    all.push_back({&target, 64, 64, 64, 1, 2048 - 64});  // 4 KB apart: copied
    all.push_back({&target, 64, 32, 24, 1, 0});
  }
  return all;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(F16OpsTest);
INSTANTIATE_TEST_SUITE_P(Tables, F16OpsTest, testing::ValuesIn(f16_cases()), [](const auto& info) {
  const F16Case& c = info.param;
  return c.target->name + "_k" + std::to_string(c.keys) + "_l" + std::to_string(c.lanes) + "_d" + std::to_string(c.dim) + "_s" +
         std::to_string(c.stride) + "_g" + std::to_string(c.gap);
});

}  // namespace
}  // namespace foveal::cpu
