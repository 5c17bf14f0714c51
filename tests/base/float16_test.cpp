// 16-bit floats: every value survives the way to float and back, and rounding is to nearest even, checked against arithmetic on the
// neighbours.
#include "base/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/dtype.h"
#include "base/random.h"

namespace foveal::base {
namespace {

struct Format {
  const char* name;
  float (*to_float)(std::uint16_t);
  std::uint16_t (*from_float)(float);
  DType dtype;
};

class Float16 : public testing::TestWithParam<Format> {};

TEST_P(Float16, EveryValueSurvives) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = GetParam().to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(GetParam().to_float(GetParam().from_float(value))));
    } else {
      ASSERT_EQ(GetParam().from_float(value), bits) << value;
    }
  }
}

TEST_P(Float16, RoundsToNearestEven) {
  // Between each pair of neighbours: below, at and above the middle.
  for (std::uint32_t bits = 0; bits < 0x7FFF; ++bits) {
    const float low = GetParam().to_float(static_cast<std::uint16_t>(bits)),
                high = GetParam().to_float(static_cast<std::uint16_t>(bits + 1));
    if (!std::isfinite(high)) break;
    const float middle = low + (high - low) / 2;
    const std::uint16_t even = static_cast<std::uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(GetParam().from_float(middle), even) << middle;
    ASSERT_EQ(GetParam().from_float(-middle), even | 0x8000u) << middle;
    ASSERT_EQ(GetParam().from_float(std::nextafter(middle, low)), bits) << middle;
    ASSERT_EQ(GetParam().from_float(std::nextafter(middle, high)), bits + 1) << middle;
  }
}

TEST_P(Float16, DoublesRoundOnce) {
  // A double just above a middle must not be rounded to the middle first and then to even.
  Random random(7);
  for (int i = 0; i < 20000; ++i) {
    const auto bits = static_cast<std::uint16_t>(random.integer(0, 0x7BFE));
    const double low = GetParam().to_float(bits), high = GetParam().to_float(static_cast<std::uint16_t>(bits + 1));
    if (!std::isfinite(high)) continue;
    const double middle = low + (high - low) / 2;
    EXPECT_EQ(round_to(GetParam().dtype, std::nextafter(middle, high)), high);
    EXPECT_EQ(round_to(GetParam().dtype, std::nextafter(middle, low)), low);
    EXPECT_EQ(round_to(GetParam().dtype, -std::nextafter(middle, high)), -high);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Float16,
                         testing::Values(Format{"bf16", bf16_to_float, float_to_bf16, DType::bf16},
                                         Format{"f16", f16_to_float, float_to_f16, DType::f16}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Float16Limits, OverflowGoesToInfinity) {
  EXPECT_EQ(f16_to_float(float_to_f16(65519.0f)), 65504.0f);
  EXPECT_EQ(f16_to_float(float_to_f16(65520.0f)), INFINITY);
  EXPECT_EQ(round_to(DType::bf16, 3.4e38), INFINITY);
  EXPECT_EQ(round_to(DType::bf16, -1e300), -INFINITY);
  EXPECT_EQ(f16_to_float(float_to_f16(0x1p-25f)), 0.0f);
  EXPECT_EQ(f16_to_float(float_to_f16(0x1.8p-25f)), 0x1p-24f);
}

}  // namespace
}  // namespace foveal::base
