#pragma once
// Zeros that take no memory until they are touched.
#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace foveal::test {

class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes)
      : bytes_(bytes), data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  SparseMemory(SparseMemory&& other) noexcept : bytes_(other.bytes_), data_(std::exchange(other.data_, MAP_FAILED)) {}
  SparseMemory& operator=(SparseMemory&&) = delete;
  ~SparseMemory() {
    if (there()) munmap(data_, bytes_);
  }

  bool there() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

}  // namespace foveal::test
