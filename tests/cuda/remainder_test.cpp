// Remainders and floor divisions of kernels, compiled for the host: exact for all operands, whatever the last place of the device's reciprocals is.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "cuda/index/nvrtc.h"
//
#include "score/approximations.cuh"

int __float_as_int(float x) { return std::bit_cast<int>(x); }
float __int_as_float(int x) { return std::bit_cast<float>(x); }

namespace foveal::device {
/// Within a unit in the last place; subnormal numbers count as 0.
inline float reciprocal_of_test(float x) {
  static std::mt19937 random(1);
  const auto flushed = [](float y) { return std::abs(y) < 0x1p-126f ? std::copysign(0.0f, y) : y; };
  const float exact = flushed(1 / flushed(x));
  if (exact == 0 || !std::isfinite(exact)) return exact;
  return std::bit_cast<float>(std::bit_cast<int>(exact) + static_cast<int>(random() % 3) - 1);
}
}  // namespace foveal::device
#define reciprocal_approx reciprocal_of_test
#include "score/remainder.cuh"

namespace foveal::cuda {
namespace {

float exact_remainder(float a, float b) {
  const float rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
/// In double, whose quotient of what is left is exact up to its own rounding.
double exact_quotient(double a, double b) {
  if (b == 0) return a / b;
  const double rest = std::fmod(a, b), whole = std::nearbyint((a - rest) / b);
  return rest != 0 && (rest < 0) != (b < 0) ? whole - 1 : whole;
}

void expect_exact(float a, float b) {
  const float rest = exact_remainder(a, b), found = device::remainder_of(a, b);
  EXPECT_TRUE(found == rest || (std::isnan(found) && std::isnan(rest))) << a << " % " << b << ": " << found << "; exact " << rest;
  const double quotient = exact_quotient(a, b);
  const float whole = device::floor_of_quotient(a, b);
  const double bound = std::abs(quotient) <= 0x1p24 ? 0 : std::abs(quotient) * 0x1p-22;
  const bool right = whole == static_cast<float>(quotient) || std::abs(whole - quotient) <= bound;
  EXPECT_TRUE(right || (std::isnan(whole) && std::isnan(quotient))) << a << " // " << b << ": " << whole << "; exact " << quotient;
}

TEST(Remainder, IsExact) {
  std::mt19937 random(7);
  const auto below = [&](unsigned count) { return static_cast<int>(random() % count); };
  const auto operand = [&] {
    const auto digits = static_cast<float>(below(1 << 24) - (1 << 23));
    return std::ldexp(digits, below(3) == 0 ? below(100) - 70 : below(40) - 30);
  };
  for (int i = 0; i < 300000 && !testing::Test::HasFailure(); ++i) {
    const float b = operand();
    float a = below(4) == 0 ? b * static_cast<float>(below(2000) - 1000) : operand();  // multiples, and their neighbours
    if (below(6) == 0) a = std::nextafter(a, below(2) == 0 ? INFINITY : -INFINITY);
    expect_exact(a, b);
  }
}

TEST(Remainder, OfZerosInfinitiesAndNaN) {
  for (const float a : {0.0f, -0.0f, 1.0f, -1.0f, 5.0f, INFINITY, -INFINITY, NAN, 1e38f, 1e-40f})
    for (const float b : {0.0f, -0.0f, 1.0f, -1.0f, 3.0f, -3.0f, INFINITY, -INFINITY, NAN, 1e38f, -2e38f}) expect_exact(a, b);
}

}  // namespace
}  // namespace foveal::cuda
