#include "base/hash.h"

#include <bit>

namespace foveal::base {
namespace {

std::uint64_t word_at(std::string_view bytes, std::size_t begin) {
  std::uint64_t word = 0;
  for (std::size_t i = begin; i < begin + 8 && i < bytes.size(); ++i)
    word |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * (i - begin));
  return word;
}

}  // namespace

Hash128 hash128(std::string_view bytes) {
  std::uint64_t low = 0x9E3779B97F4A7C15u ^ bytes.size(), high = 0xD1B54A32D192ED03u;
  for (std::size_t begin = 0; begin < bytes.size(); begin += 8) {
    const std::uint64_t word = word_at(bytes, begin);
    low = mix(low ^ word) + 0x9E3779B97F4A7C15u;
    high = mix(std::rotl(high, 29) + word) ^ low;
  }
  return {mix(low ^ std::rotl(high, 32)), mix(high + low)};
}

std::string to_hex(const Hash128& hash) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const std::uint64_t word : {hash.high, hash.low})
    for (int shift = 60; shift >= 0; shift -= 4) text += digits[(word >> shift) & 15u];
  return text;
}

}  // namespace foveal::base
