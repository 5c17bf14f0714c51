#pragma once
// What must hold of tensors that came from a file.
#include <vector>

#include "bytes.h"
#include "files/tensor.h"

namespace foveal::fuzz {

inline void check_tensor(const cli::Tensor& tensor) {
  if (cli::tensor_bytes("tensor", tensor.dtype, tensor.shape) != tensor.bytes.size()) found("a tensor without all its bytes");
}

/// The second are the first, written and read. Sources of single files name no tensor.
inline void check_same(const std::vector<cli::Tensor>& a, const std::vector<cli::Tensor>& b) {
  if (a.size() != b.size()) found("other tensors the second time");
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i].dtype != b[i].dtype || a[i].shape != b[i].shape || a[i].bytes != b[i].bytes) found("another tensor the second time");
}

}  // namespace foveal::fuzz
