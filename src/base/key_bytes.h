#pragma once
// Keys of caches as raw bytes: cheap to make and to compare. Equal values in the same order give equal bytes, others different ones.
#include <string>
#include <string_view>
#include <type_traits>

namespace foveal::base {

/// Appends to a string of the caller, whose memory may be reused. Structs have padding: name their fields.
class KeyBytes {
 public:
  explicit KeyBytes(std::string& out) : out_(out) { out_.clear(); }

  template <class T>
  requires std::is_scalar_v<T>
  void append(T value) { append_raw(&value, sizeof(T)); }  // NOLINT(bugprone-sizeof-expression): pointers are meant
  void append(std::string_view text) { append(text.size()), out_ += text; }
  /// Of a length that is known from what was appended before.
  void append_raw(const void* bytes, std::size_t count) { out_.append(static_cast<const char*>(bytes), count); }

 private:
  std::string& out_;
};

}  // namespace foveal::base
