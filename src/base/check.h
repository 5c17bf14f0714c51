#pragma once
// FOVEAL_CHECK(condition, "q: rank ", found, "; expected 4"): throws invalid_argument with the pieces joined.
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "foveal/error.h"

namespace foveal::base {

/// Text, characters, numbers (reals with six digits) and addresses, whatever the process's locale is.
template <class Piece>
void append(std::string& out, const Piece& piece) {
  if constexpr (std::is_same_v<Piece, char>) {
    out += piece;
  } else if constexpr (std::is_integral_v<Piece>) {
    out += std::to_string(piece);
  } else if constexpr (std::is_floating_point_v<Piece>) {
    char text[32];
    const auto end = std::to_chars(text, text + sizeof text, static_cast<double>(piece), std::chars_format::general, 6);
    out.append(text, end.ptr);
  } else if constexpr (std::is_convertible_v<Piece, const void*> && !std::is_convertible_v<Piece, std::string_view>) {
    char text[20] = {'0', 'x'};
    const auto end = std::to_chars(text + 2, text + sizeof text, reinterpret_cast<std::uintptr_t>(static_cast<const void*>(piece)), 16);
    out.append(text, end.ptr);
  } else {
    out += std::string_view(piece);
  }
}

template <class... Pieces>
std::string join(const Pieces&... pieces) {
  std::string out;
  (append(out, pieces), ...);
  return out;
}

/// "[2, 128, 64]"
inline std::string shape_text(const std::int64_t* sizes, int rank) {
  std::string out = "[";
  for (int d = 0; d < rank; ++d) out += (d > 0 ? ", " : "") + std::to_string(sizes[d]);
  return out + "]";
}
inline std::string shape_text(const std::vector<std::int64_t>& sizes) { return shape_text(sizes.data(), static_cast<int>(sizes.size())); }

template <class... Pieces>
[[noreturn]] void fail(ErrorCode code, const Pieces&... pieces) {
  throw Error(code, join(pieces...));
}

}  // namespace foveal::base

#define FOVEAL_CHECK(condition, ...)                                                            \
  do {                                                                                          \
    if (!(condition)) ::foveal::base::fail(::foveal::ErrorCode::invalid_argument, __VA_ARGS__); \
  } while (false)
