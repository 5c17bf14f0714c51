#pragma once
// Why a rank cannot go on. In memory of its own: memory may be what has run out.
#include <array>
#include <cstdarg>
#include <cstdio>

namespace foveal::dist {

class FailureText {
 public:
  bool empty() const { return text_[0] == 0; }
  const char* data() const { return text_.data(); }
  static constexpr std::size_t bytes = 512;

  /// Keeps what is there already: the first failure is that of all.
  [[gnu::format(printf, 2, 3)]] void set(const char* format, ...) noexcept {
    if (!empty()) return;
    std::va_list values;
    va_start(values, format);
    std::vsnprintf(text_.data(), bytes, format, values);
    va_end(values);
  }

 private:
  std::array<char, bytes> text_{};
};

}  // namespace foveal::dist
