#pragma once
// A 128-bit content hash: names cache entries, not secrets. The same bytes give the same hash on every machine.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace foveal::base {

/// The finaliser of splitmix64: every input bit changes every output bit.
inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

struct Hash128 {
  std::uint64_t low = 0, high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

Hash128 hash128(std::string_view bytes);
inline std::uint64_t hash64(std::string_view bytes) { return hash128(bytes).low; }

/// 32 lowercase hexadecimal digits.
std::string to_hex(const Hash128& hash);

}  // namespace foveal::base
