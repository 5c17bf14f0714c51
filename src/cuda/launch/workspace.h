#pragma once
// Pieces of the caller's workspace, each aligned to 256 bytes: reserved while planning, found again while running.
#include <cstddef>

#include "base/divide.h"

namespace foveal::cuda {

class Workspace {
 public:
  /// The offset of a new piece.
  std::size_t reserve(std::size_t bytes) {
    const std::size_t offset = bytes_;
    bytes_ += base::round_up(bytes, std::size_t{256});
    return offset;
  }
  std::size_t bytes() const { return bytes_; }

  template <class T>
  static T* at(void* workspace, std::size_t offset) {
    return reinterpret_cast<T*>(static_cast<char*>(workspace) + offset);
  }

 private:
  std::size_t bytes_ = 0;
};

}  // namespace foveal::cuda
