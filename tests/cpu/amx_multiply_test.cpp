// The schedule of the AMX matmul on the scalar model of its tiles, and on the hardware where it is.
#include "cpu/kernels/amx_multiply.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "cpu/simd/amx.h"
#include "scalar_tiles.h"

namespace foveal::cpu {
namespace {

struct Product {
  int rows, columns, steps;
  bool accumulate;
};

float as_float(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

template <class Tiles>
void check(const Product& shape) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::vector<std::uint16_t>& values) {
    for (std::uint16_t& x : values) x = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
  };
  const int depth = 32 * shape.steps, c_ld = shape.columns + 16;
  std::vector<std::uint16_t> a(static_cast<std::size_t>(shape.rows * depth)), b(static_cast<std::size_t>(depth * shape.columns));
  fill(a), fill(b);
  std::vector<float> c(static_cast<std::size_t>(shape.rows * c_ld), 0.5f);
  {
    Tiles tiles;
    tiles.enter();
    AmxMultiply<Tiles> multiply(tiles);
    const AmxProduct product{c.data(),          a.data(),   b.data(),      c_ld * 4,    depth * 2,
                             shape.columns * 4, shape.rows, shape.columns, shape.steps, shape.accumulate};
    multiply(product);
    if (shape.accumulate) multiply(product);  // the tiles that are still pending must be added to, not lost
    multiply.finish();
    tiles.leave();
  }
  const int times = shape.accumulate ? 2 : 1;
  for (int i = 0; i < shape.rows; ++i) {
    for (int j = 0; j < c_ld; ++j) {
      double expected = shape.accumulate ? 0.5 : 0.0, magnitude = 1;
      for (int k = 0; k < depth && j < shape.columns; ++k) {
        const double term = double{as_float(a[static_cast<std::size_t>(i * depth + k)])} *
                            as_float(b[static_cast<std::size_t>((k / 2 * shape.columns + j) * 2 + k % 2)]);
        expected += times * term;
        magnitude += std::fabs(term);
      }
      if (j >= shape.columns) expected = 0.5;  // outside of C: untouched
      ASSERT_NEAR(c[static_cast<std::size_t>(i * c_ld + j)], expected, 1e-6 * magnitude) << i << ' ' << j;
    }
  }
}

class AmxMultiplyTest : public testing::TestWithParam<Product> {};

TEST_P(AmxMultiplyTest, ScalarModel) { check<ScalarTiles>(GetParam()); }

TEST_P(AmxMultiplyTest, Hardware) {
  if (!amx_bf16_available()) GTEST_SKIP() << "no AMX-bf16 here";
  check<AmxTiles>(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Shapes, AmxMultiplyTest,
                         testing::Values(Product{16, 16, 1, false}, Product{16, 16, 1, true}, Product{32, 16, 1, true},
                                         Product{48, 16, 2, true}, Product{32, 32, 2, false}, Product{48, 64, 3, false},
                                         Product{128, 64, 2, true}, Product{128, 64, 4, false}),
                         [](const auto& info) {
                           const Product& p = info.param;
                           return std::to_string(p.rows) + "x" + std::to_string(p.columns) + "x" + std::to_string(p.steps) +
                                  (p.accumulate ? "_add" : "");
                         });

TEST(ScalarTilesTest, DenormalsAreZero) {
  ScalarTiles tiles;
  alignas(64) std::uint16_t a[512] = {}, b[512] = {};
  alignas(64) float c[256] = {};
  a[0] = 0x0040, b[0] = 0x7f00;   // a denormal times a large number
  a[33] = 0x1f80, b[1] = 0x1f80;  // 2^-64 * 2^-64 underflows
  tiles.zero<0>();
  tiles.load<4>(a), tiles.load<6>(b);
  tiles.dot<0, 4, 6>();
  tiles.store<0>(c);
  EXPECT_EQ(c[0], 0.0f);
  EXPECT_EQ(c[16], 0.0f);
}

}  // namespace
}  // namespace foveal::cpu
