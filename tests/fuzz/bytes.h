#pragma once
// A fuzzer's input taken apart: numbers, picks and text, zero when it is used up.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>

namespace foveal::fuzz {

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  template <class T>
  T take() {
    T value{};
    const std::size_t count = size_ < sizeof value ? size_ : sizeof value;
    if (count > 0) std::memcpy(&value, data_, count);
    data_ += count, size_ -= count;
    return value;
  }
  unsigned pick(unsigned count) { return take<std::uint8_t>() % count; }
  bool once_in(unsigned count) { return size_ > 0 && pick(count) == count - 1; }
  bool used_up() const { return size_ == 0; }

  template <class T, std::size_t n>
  T one_of(const T (&choices)[n]) {
    return choices[pick(n)];
  }

  /// The numbers that arithmetic goes wrong with, and any.
  std::int64_t wild() {
    constexpr std::int64_t top = std::numeric_limits<std::int64_t>::max();
    constexpr std::int64_t known[] = {0,
                                      1,
                                      -1,
                                      2,
                                      7,
                                      64,
                                      1 << 16,
                                      (std::int64_t{1} << 31) - 1,
                                      std::int64_t{1} << 31,
                                      std::int64_t{1} << 32,
                                      std::int64_t{1} << 61,
                                      std::int64_t{1} << 62,
                                      top - 1,
                                      top,
                                      -top,
                                      -top - 1};
    const unsigned at = pick(20);
    return at < 16 ? known[at] : take<std::int64_t>();
  }

  /// Up to the next zero byte, at most `longest`.
  std::string text(std::size_t longest) {
    std::string found;
    while (size_ > 0 && found.size() < longest) {
      const char c = take<char>();
      if (c == 0) break;
      found.push_back(c);
    }
    return found;
  }
  std::string_view rest() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

/// What must hold does not: a finding, in every build.
[[noreturn]] inline void found(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

}  // namespace foveal::fuzz
