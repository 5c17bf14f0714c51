#pragma once
// bf16 and f16 elements one at a time, without special instructions.
#include <cstdint>

namespace foveal::cpu {
namespace {

inline float from_bf16(std::uint16_t x) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(x) << 16); }

inline std::uint16_t to_bf16(float x) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
  if (x != x) return static_cast<std::uint16_t>((bits | 0x400000u) >> 16);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float from_f16(std::uint16_t x) {
  const std::uint32_t sign = (x & 0x8000u) << 16, exponent = (x >> 10) & 31u, mantissa = x & 0x3ffu;
  std::uint32_t magnitude = __builtin_bit_cast(std::uint32_t, static_cast<float>(mantissa) * 0x1p-24f);  // zero or subnormal
  if (exponent == 31)
    magnitude = 0x7f800000u | (mantissa << 13);
  else if (exponent != 0)
    magnitude = ((exponent + 112u) << 23) | (mantissa << 13);
  return __builtin_bit_cast(float, magnitude | sign);
}

inline std::uint16_t to_f16(float x) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {                                                    // denormal: the addition rounds to a multiple of 2^-24
    const float rounded = __builtin_bit_cast(float, magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (__builtin_bit_cast(std::uint32_t, rounded) - 0x3f000000u));
  }
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

}  // namespace
}  // namespace foveal::cpu
