#include "files/tensor.h"

#include <algorithm>

#include "base/check.h"

namespace foveal::cli {

TensorView Tensor::view() {
  TensorView result;
  result.data = bytes.data();
  result.dtype = dtype;
  result.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    result.sizes[i] = shape[i];
    result.strides[i] = stride;
    stride *= shape[i];
  }
  return result;
}

Tensor make_tensor(std::string name, DType dtype, std::vector<std::int64_t> shape) {
  Tensor tensor{std::move(name), dtype, std::move(shape), {}};
  tensor.bytes.resize(tensor_bytes(tensor.name, tensor.dtype, tensor.shape));
  return tensor;
}

std::uint64_t tensor_bytes(const std::string& what, DType dtype, const std::vector<std::int64_t>& shape) {
  FOVEAL_CHECK(shape.size() <= TensorView::max_rank, what, ": rank ", shape.size(), "; expected at most ", int{TensorView::max_rank});
  std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  bool empty = false;
  for (const std::int64_t size : shape) {
    FOVEAL_CHECK(size >= 0, what, ": size ", size, "; expected none below 0");
    empty = empty || size == 0;
    // Also where it is empty: strides are products of sizes.
    FOVEAL_CHECK(!__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes), what, ": more bytes than 64 bits can count");
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

const std::vector<DTypeName>& dtype_names() {
  // NumPy has no bf16; its extensions write it as two bytes without a meaning, and so do we.
  static const std::vector<DTypeName> names{{DType::f64, "f8", "F64"},     {DType::f32, "f4", "F32"}, {DType::bf16, "V2", "BF16"},
                                            {DType::f16, "f2", "F16"},     {DType::i64, "i8", "I64"}, {DType::i32, "i4", "I32"},
                                            {DType::i16, "i2", "I16"},     {DType::i8, "i1", "I8"},   {DType::u8, "u1", "U8"},
                                            {DType::boolean, "b1", "BOOL"}};
  return names;
}

}  // namespace foveal::cli
