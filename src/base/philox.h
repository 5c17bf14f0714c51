#pragma once
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and its use in dropout. Device code has
// the same few lines; tests compare the bits.
#include <array>
#include <cstdint>

namespace foveal::base {

constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(p0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// The 32 random bits of one pair. kv, q: global positions; row: batch * heads_q + head. One Philox call covers four consecutive kv:
/// counter = {kv / 4, q, row, low word of offset}, key = seed with the high word of offset xored into its high word; word kv % 4.
constexpr std::uint32_t dropout_bits(std::uint64_t seed, std::uint64_t offset, std::uint32_t row, std::uint32_t q, std::uint32_t kv) {
  const auto words = philox({kv / 4, q, row, static_cast<std::uint32_t>(offset)}, static_cast<std::uint32_t>(seed),
                            static_cast<std::uint32_t>(seed >> 32) ^ static_cast<std::uint32_t>(offset >> 32));
  return words[kv % 4];
}

/// A pair is kept when its bits are >= this.
constexpr std::uint32_t dropout_threshold(double p) {
  const double t = p * 4294967296.0;
  return t >= 4294967295.0 ? 4294967295u : static_cast<std::uint32_t>(t);
}

}  // namespace foveal::base
