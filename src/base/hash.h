#pragma once
// A 128-bit content hash: names cache entries, not secrets. The same bytes give the same hash on every machine.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace foveal::base {

struct Hash128 {
  std::uint64_t low = 0, high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

Hash128 hash128(std::string_view bytes);
inline std::uint64_t hash64(std::string_view bytes) { return hash128(bytes).low; }

/// 32 lowercase hexadecimal digits.
std::string to_hex(const Hash128& hash);

}  // namespace foveal::base
