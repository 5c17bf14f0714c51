#pragma once
// Memory of a test's fixture.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace foveal::test {

class ZeroedMemory {
 protected:
  /// Aligned to 64 bytes; lives as long as the fixture.
  template <class T>
  T* memory(std::size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    void* p = std::aligned_alloc(64, bytes);
    std::memset(p, 0, bytes);
    owned_.emplace_back(p, std::free);
    return static_cast<T*>(p);
  }

 private:
  std::vector<std::unique_ptr<void, void (*)(void*)>> owned_;
};

}  // namespace foveal::test
