#pragma once
// FOVEAL_CHECK(condition, "q: rank ", found, "; expected 4"): throws invalid_argument with the pieces joined.
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "foveal/error.h"

namespace foveal::base {

/// What messages are joined from: text, a character, a number (reals with six digits) or an address, whatever the process's locale is.
/// Compiled once for all messages, whatever their pieces are.
class Piece {
 public:
  explicit Piece(std::string_view text) : text_(text) {}
  explicit Piece(char character);
  explicit Piece(std::int64_t number);
  explicit Piece(std::uint64_t number);
  explicit Piece(double number);
  explicit Piece(const void* address);
  Piece(const Piece&) = delete;  // text_ may be of number_
  Piece& operator=(const Piece&) = delete;

  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
  char number_[32];
};

template <class T>
Piece piece(const T& value) {
  if constexpr (std::is_same_v<T, char>) {
    return Piece(value);
  } else if constexpr (std::is_integral_v<T>) {
    return Piece(static_cast<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    return Piece(static_cast<double>(value));
  } else if constexpr (std::is_convertible_v<T, const void*> && !std::is_convertible_v<T, std::string_view>) {
    return Piece(static_cast<const void*>(value));
  } else {
    return Piece(std::string_view(value));
  }
}

std::string joined(std::initializer_list<Piece> pieces);
[[noreturn]] void fail_joined(ErrorCode code, std::initializer_list<Piece> pieces);

template <class... Pieces>
std::string join(const Pieces&... pieces) {
  return joined({piece(pieces)...});
}

/// "[2, 128, 64]"
std::string shape_text(const std::int64_t* sizes, int rank);
std::string shape_text(const std::vector<std::int64_t>& sizes);

template <class... Pieces>
[[noreturn]] void fail(ErrorCode code, const Pieces&... pieces) {
  fail_joined(code, {piece(pieces)...});
}

}  // namespace foveal::base

#define FOVEAL_CHECK(condition, ...)                                                            \
  do {                                                                                          \
    if (!(condition)) ::foveal::base::fail(::foveal::ErrorCode::invalid_argument, __VA_ARGS__); \
  } while (false)
