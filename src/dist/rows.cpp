#include "dist/rows.h"

#include <cstring>

#include "base/dtype.h"

namespace foveal::dist {
namespace {

std::int64_t size(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

/// see(from, to) for each row of `dim` elements.
template <class See>
void each_row(const Rows& from, const Rows& to, See&& see) {
  for (std::int64_t b = 0; b < from.batch; ++b)
    for (std::int64_t t = 0; t < from.tokens; ++t)
      for (std::int64_t h = 0; h < from.heads; ++h) see(from.at(b, t, h), to.at(b, t, h));
}

template <class Real>
void add_row(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride, std::int64_t dim) {
  for (std::int64_t d = 0; d < dim; ++d) {
    Real a, b;
    std::memcpy(&a, from + d * from_stride, sizeof(Real));
    std::memcpy(&b, to + d * to_stride, sizeof(Real));
    b += a;
    std::memcpy(to + d * to_stride, &b, sizeof(Real));
  }
}

/// A view whose axes stand at these places of the tensor; -1: it has no such axis.
Rows rows_of(const TensorView& view, int batch, int tokens, int heads, int dim) {
  const std::int64_t element = size(view.dtype);
  const auto length = [&](int axis) { return axis < 0 ? 1 : view.sizes[static_cast<std::size_t>(axis)]; };
  const auto stride = [&](int axis) { return axis < 0 ? 0 : view.strides[static_cast<std::size_t>(axis)] * element; };
  return {.data = static_cast<std::byte*>(view.data),
          .dtype = view.dtype,
          .batch = length(batch),
          .tokens = length(tokens),
          .heads = length(heads),
          .dim = length(dim),
          .batch_stride = stride(batch),
          .token_stride = stride(tokens),
          .head_stride = stride(heads),
          .dim_stride = dim < 0 ? element : stride(dim)};
}

}  // namespace

Rows Rows::slice(Range of_tokens, Range of_heads) const {
  Rows rows = *this;
  if (data != nullptr) rows.data = at(0, of_tokens.begin, of_heads.begin);
  rows.tokens = of_tokens.size(), rows.heads = of_heads.size();
  return rows;
}

Rows rows_of(const TensorView& view) { return view.rank == 4 ? rows_of(view, 0, 1, 2, 3) : rows_of(view, -1, 0, 1, 2); }
Rows statistics_of(const TensorView& view) { return view.rank == 3 ? rows_of(view, 0, 2, 1, -1) : rows_of(view, -1, 1, 0, -1); }

TensorView tensor_of(const Rows& r, Device device) {
  const std::int64_t e = size(r.dtype);
  return TensorView(r.data, r.dtype, {r.batch, r.tokens, r.heads, r.dim},
                    {r.batch_stride / e, r.token_stride / e, r.head_stride / e, r.dim_stride / e}, device);
}
TensorView statistics_tensor(const Rows& r, Device device) {
  const std::int64_t e = size(r.dtype);
  return TensorView(r.data, r.dtype, {r.batch, r.heads, r.tokens}, {r.batch_stride / e, r.head_stride / e, r.token_stride / e}, device);
}
TensorView packed_tensor(const Rows& r, Device device) {
  const std::int64_t e = size(r.dtype);
  return TensorView(r.data, r.dtype, {r.batch * r.tokens, r.heads, r.dim}, {r.token_stride / e, r.head_stride / e, r.dim_stride / e},
                    device);
}
TensorView packed_statistics(const Rows& r, Device device) {
  const std::int64_t e = size(r.dtype);
  return TensorView(r.data, r.dtype, {r.heads, r.batch * r.tokens}, {r.head_stride / e, r.token_stride / e}, device);
}

Rows contiguous_like(const Rows& rows, std::byte* memory) {
  Rows dense = rows;
  dense.data = memory;
  dense.dim_stride = size(rows.dtype), dense.head_stride = rows.dim * dense.dim_stride;
  dense.token_stride = rows.heads * dense.head_stride, dense.batch_stride = rows.tokens * dense.token_stride;
  return dense;
}

bool is_dense(const Rows& rows) {
  const std::int64_t element = size(rows.dtype);
  return rows.dim_stride == element && rows.head_stride == rows.dim * element && rows.token_stride == rows.heads * rows.head_stride;
}

Rows RowMemory::rows(DType dtype, std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t dim, For use) {
  const Rows sizes{.dtype = dtype, .batch = batch, .tokens = tokens, .heads = heads, .dim = dim};
  return contiguous_like(sizes, take(static_cast<std::size_t>(sizes.bytes()), use));
}

Rows RowMemory::statistics(DType dtype, std::int64_t batch, std::int64_t tokens, std::int64_t heads, For use) {
  Rows rows{.dtype = dtype, .batch = batch, .tokens = tokens, .heads = heads};
  rows.dim_stride = rows.token_stride = size(dtype), rows.batch_stride = tokens * rows.token_stride;
  rows.head_stride = batch * rows.batch_stride;
  rows.data = take(static_cast<std::size_t>(rows.bytes()), use);
  return rows;
}

std::byte* Buffers::take(std::size_t bytes, For /*use*/) {
  bytes_ += bytes;
  return blocks_.emplace_back(bytes).data();
}

void Buffers::copy(const Rows& from, const Rows& to) {
  const std::int64_t element = size(from.dtype);
  each_row(from, to, [&](std::byte* a, std::byte* b) {
    if (from.dtype != to.dtype) {
      for (std::int64_t d = 0; d < from.dim; ++d)
        base::store(b + d * to.dim_stride, to.dtype, 0, base::load(a + d * from.dim_stride, from.dtype, 0));
    } else if (from.dim_stride == element && to.dim_stride == element) {
      std::memcpy(b, a, static_cast<std::size_t>(from.dim * element));
    } else {
      for (std::int64_t d = 0; d < from.dim; ++d)
        std::memcpy(b + d * to.dim_stride, a + d * from.dim_stride, static_cast<std::size_t>(element));
    }
  });
}

void Buffers::add(const Rows& from, const Rows& to) {
  each_row(from, to, [&](const std::byte* a, std::byte* b) {
    if (from.dtype == DType::f64)
      add_row<double>(a, from.dim_stride, b, to.dim_stride, from.dim);
    else
      add_row<float>(a, from.dim_stride, b, to.dim_stride, from.dim);
  });
}

}  // namespace foveal::dist
