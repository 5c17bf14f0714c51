#pragma once
// Strided views: iteration in row-major order, and contiguous views.
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/divide.h"
#include "base/parallel.h"
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

/// Calls fn(index, count, offset, stride) for runs of elements of one row (of the last dimension), on all threads: `count` elements from
/// the row-major `index` on, the first at `offset` from data, `stride` apart.
template <class Fn>
void parallel_runs(const TensorView& view, const Executor& executor, Fn&& fn) {
  constexpr std::int64_t elements_per_task = 1 << 14;
  const auto last = static_cast<std::size_t>(view.rank - 1);
  const std::int64_t count = view.numel(), row = view.rank > 0 ? view.sizes[last] : 1, stride = view.rank > 0 ? view.strides[last] : 1;
  parallel_for(executor, divide_up(count, elements_per_task), [&](std::int64_t task, int) {
    const std::int64_t end = std::min(count, (task + 1) * elements_per_task);
    for (std::int64_t i = task * elements_per_task; i < end;) {
      std::int64_t offset = i % row * stride, rest = i / row;
      for (int d = view.rank - 1; d-- > 0;) {
        const auto n = static_cast<std::size_t>(d);
        offset += rest % view.sizes[n] * view.strides[n];
        rest /= view.sizes[n];
      }
      const std::int64_t run = std::min(end - i, row - i % row);
      fn(i, run, offset, stride);
      i += run;
    }
  });
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

/// Whether the elements lie one after the other in row-major order.
inline bool is_contiguous(const TensorView& view) {
  std::int64_t stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    const auto n = static_cast<std::size_t>(d);
    if (view.sizes[n] != 1 && view.strides[n] != stride) return false;
    stride *= view.sizes[n];
  }
  return true;
}

/// A contiguous view of other memory, of the same sizes and device.
inline TensorView contiguous_like(const TensorView& like, void* data, DType dtype) {
  TensorView view = like;
  view.data = data, view.dtype = dtype;
  make_contiguous(view);
  return view;
}

}  // namespace foveal::base
