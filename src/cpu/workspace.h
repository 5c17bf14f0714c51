#pragma once
// Cuts one piece of memory into aligned arrays. Run over a null base it only measures, so the same code plans and runs.
#include <cstddef>
#include <cstdint>

namespace foveal::cpu {

class Carver {
 public:
  explicit Carver(void* base) : base_(reinterpret_cast<std::uintptr_t>(base)) {}

  template <class T>
  T* take(std::size_t count) {
    return static_cast<T*>(bytes(count * sizeof(T)));
  }
  void* bytes(std::size_t size) {
    void* p = base_ ? reinterpret_cast<void*>(base_ + offset_) : nullptr;
    offset_ += (size + alignment - 1) / alignment * alignment;
    return p;
  }
  std::size_t used() const { return offset_; }

 private:
  static constexpr std::size_t alignment = 128;  // two cache lines: what processors fetch together
  std::uintptr_t base_;
  std::size_t offset_ = 0;
};

}  // namespace foveal::cpu
