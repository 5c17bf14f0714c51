#pragma once
// Strided views: iteration in row-major order, and contiguous views.
#include <array>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "foveal/tensor.h"

namespace foveal::base {

inline std::int64_t numel(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

/// Calls fn(index, offset) for each element: its row-major index, and its offset from data in elements.
template <class Fn>
void each_element(const TensorView& view, Fn&& fn) {
  std::array<std::int64_t, TensorView::max_rank> index{};
  const std::int64_t count = view.numel();
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    fn(i, offset);
    for (int d = view.rank - 1; d >= 0; --d) {
      const auto n = static_cast<std::size_t>(d);
      offset += view.strides[n];
      if (++index[n] < view.sizes[n]) break;
      offset -= view.sizes[n] * view.strides[n];
      index[n] = 0;
    }
  }
}

/// Sets row-major strides.
inline void make_contiguous(TensorView& view) {
  std::int64_t stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    const auto n = static_cast<std::size_t>(d);
    view.strides[n] = stride;
    FOVEAL_CHECK(!__builtin_mul_overflow(stride, view.sizes[n], &stride), "sizes: ", view.sizes[n], " in dimension ", d,
                 "; the elements of a tensor cannot be counted in 64 bits");
  }
}

/// A contiguous view of other memory, of the same sizes and device.
inline TensorView contiguous_like(const TensorView& like, void* data, DType dtype) {
  TensorView view = like;
  view.data = data, view.dtype = dtype;
  make_contiguous(view);
  return view;
}

}  // namespace foveal::base
