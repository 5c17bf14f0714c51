#pragma once
// Strided views: their elements in row-major order, and contiguous views of the same sizes.
#include <array>
#include <cstdint>

#include "foveal/tensor.h"

namespace foveal::base {

/// see(index, offset): the element's row-major number, and where it lies in elements from data.
template <class See>
void each_element(const TensorView& view, See&& see) {
  std::array<std::int64_t, TensorView::max_rank> index{};
  const std::int64_t count = view.numel();
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    see(i, offset);
    for (int d = view.rank - 1; d >= 0; --d) {
      const auto n = static_cast<std::size_t>(d);
      offset += view.strides[n];
      if (++index[n] < view.sizes[n]) break;
      offset -= view.sizes[n] * view.strides[n];
      index[n] = 0;
    }
  }
}

/// A contiguous view of other memory, of the sizes and on the device of this one.
inline TensorView contiguous_like(const TensorView& like, void* data, DType dtype) {
  TensorView view = like;
  view.data = data, view.dtype = dtype;
  std::int64_t stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    view.strides[static_cast<std::size_t>(d)] = stride;
    stride *= view.sizes[static_cast<std::size_t>(d)];
  }
  return view;
}

}  // namespace foveal::base
