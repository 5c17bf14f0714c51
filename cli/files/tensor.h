#pragma once
// A named tensor that owns its bytes, contiguous and row-major: what the readers give and the writers take.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "foveal/tensor.h"

namespace foveal::cli {

struct Tensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;

  TensorView view();
};

/// Zeros.
Tensor make_tensor(std::string name, DType dtype, std::vector<std::int64_t> shape);

/// Bytes of a tensor of this shape. Throws invalid_argument, naming `what`, when a size is negative or the product leaves 64 bits.
std::uint64_t tensor_bytes(const std::string& what, DType dtype, const std::vector<std::int64_t>& shape);

/// How formats spell a dtype: one row each.
struct DTypeName {
  DType dtype;
  const char* npy;  ///< type character and width, without the byte order
  const char* safetensors;
};
const std::vector<DTypeName>& dtype_names();

}  // namespace foveal::cli
