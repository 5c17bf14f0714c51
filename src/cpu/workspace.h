#pragma once
// Workspace layout. Planning declares the arrays that a struct points to, once, by member and length;
// each run points the members into its own memory.
#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>

#include "base/divide.h"

namespace foveal::cpu {

constexpr std::size_t field_alignment = 128;  // two cache lines, which processors prefetch together
constexpr std::size_t aligned_bytes(std::size_t bytes) { return base::round_up(bytes, field_alignment); }

/// Offsets in bytes: of a member in its struct, and of its array in memory.
struct Field {
  std::size_t member, offset;
};

/// View: a plain struct of pointers, also in its bases.
template <class View>
class Layout {
 public:
  template <class T, class Base>
  void array(T* Base::*member, std::size_t count) {
    add(offset_of(member), count * sizeof(T));
  }
  template <class T, class Base>
  void bytes(T* Base::*member, std::size_t size) {
    add(offset_of(member), size);
  }
  /// An array of its own, or else that of `other`.
  template <class A, class B, class Base>
  void bytes_or_share(bool own, A* Base::*member, std::size_t size, B* Base::*other) {
    own ? bytes(member, size) : share(member, other);
  }
  /// Points to what `other` does.
  template <class A, class B, class Base>
  void share(A* Base::*member, B* Base::*other) {
    const std::size_t at = offset_of(other);
    for (std::size_t i = 0; i < fields_.size(); ++i)
      if (fields_[i].member == at) return fields_.push_back({offset_of(member), fields_[i].offset});
  }
  /// A member with a layout of its own.
  template <class Part, class Base>
  void part(Part Base::*member, const Layout<Part>& layout) {
    for (const Field& field : layout.fields()) fields_.push_back({offset_of(member) + field.member, size_ + field.offset});
    size_ += layout.size();
  }

  std::size_t size() const { return size_; }
  void place(char* memory, View& view) const {
    for (const Field& field : fields_) {
      void* array = memory + field.offset;
      std::memcpy(reinterpret_cast<char*>(&view) + field.member, &array, sizeof(array));
    }
  }

  const std::vector<Field>& fields() const { return fields_; }

 private:
  template <class T, class Base>
  static std::size_t offset_of(T Base::*member) {
    static_assert(std::is_base_of_v<Base, View>);
    const View view{};
    return static_cast<std::size_t>(reinterpret_cast<const char*>(&(view.*member)) - reinterpret_cast<const char*>(&view));
  }
  void add(std::size_t member, std::size_t size) {
    fields_.push_back({member, size_});
    size_ += aligned_bytes(size);
  }

  std::vector<Field> fields_;
  std::size_t size_ = 0;
};

}  // namespace foveal::cpu
