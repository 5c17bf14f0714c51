#include "dist/rows.h"

#include <cstring>

#include "base/dtype.h"

namespace foveal::dist {
namespace {

std::int64_t size(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

/// see(from, to) for each row of `dim` elements.
template <class See>
void each_row(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token,
              std::int64_t to_head, std::int64_t count, std::int64_t heads, See&& see) {
  for (std::int64_t b = 0; b < from.batch; ++b)
    for (std::int64_t t = 0; t < count; ++t)
      for (std::int64_t h = 0; h < heads; ++h) see(from.at(b, from_token + t, from_head + h), to.at(b, to_token + t, to_head + h));
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

}  // namespace

Rows rows_of(const TensorView& view) {
  Rows rows;
  const std::size_t first = view.rank == 4 ? 1 : 0;
  const std::int64_t element = size(view.dtype);
  rows.data = static_cast<std::byte*>(view.data), rows.dtype = view.dtype;
  rows.batch = view.rank == 4 ? view.sizes[0] : 1, rows.batch_stride = view.rank == 4 ? view.strides[0] * element : 0;
  rows.tokens = view.sizes[first], rows.token_stride = view.strides[first] * element;
  rows.heads = view.sizes[first + 1], rows.head_stride = view.strides[first + 1] * element;
  rows.dim = view.sizes[first + 2], rows.dim_stride = view.strides[first + 2] * element;
  return rows;
}

Rows statistics_of(const TensorView& view) {
  Rows rows;
  const std::size_t first = view.rank == 3 ? 1 : 0;
  const std::int64_t element = size(view.dtype);
  rows.data = static_cast<std::byte*>(view.data), rows.dtype = view.dtype;
  rows.batch = view.rank == 3 ? view.sizes[0] : 1, rows.batch_stride = view.rank == 3 ? view.strides[0] * element : 0;
  rows.heads = view.sizes[first], rows.head_stride = view.strides[first] * element;
  rows.tokens = view.sizes[first + 1], rows.token_stride = view.strides[first + 1] * element;
  rows.dim_stride = element;
  return rows;
}

bool is_dense(const Rows& rows) {
  const std::int64_t element = size(rows.dtype);
  return rows.dim_stride == element && rows.head_stride == rows.dim * element && rows.token_stride == rows.heads * rows.head_stride;
}

std::byte* Buffers::take(std::size_t bytes) {
  bytes_ += bytes;
  return blocks_.emplace_back(bytes).data();
}

Rows RowMemory::rows(DType dtype, std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
  Rows rows;
  rows.dtype = dtype, rows.batch = batch, rows.tokens = tokens, rows.heads = heads, rows.dim = dim;
  rows.dim_stride = size(dtype), rows.head_stride = dim * rows.dim_stride, rows.token_stride = heads * rows.head_stride;
  rows.batch_stride = tokens * rows.token_stride;
  rows.data = take(static_cast<std::size_t>(batch * rows.batch_stride));
  return rows;
}

Rows RowMemory::statistics(DType dtype, std::int64_t batch, std::int64_t tokens, std::int64_t heads) {
  Rows rows;
  rows.dtype = dtype, rows.batch = batch, rows.tokens = tokens, rows.heads = heads;
  rows.dim_stride = rows.token_stride = size(dtype), rows.batch_stride = tokens * rows.token_stride;
  rows.head_stride = batch * rows.batch_stride;
  rows.data = take(static_cast<std::size_t>(heads * rows.head_stride));
  return rows;
}

TensorView packed_view(const Rows& r) { return TensorView(r.data, r.dtype, {r.batch * r.tokens, r.heads, r.dim}); }
TensorView packed_statistics(const Rows& r) { return TensorView(r.data, r.dtype, {r.heads, r.batch * r.tokens}); }

void copy(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token, std::int64_t to_head,
          std::int64_t count, std::int64_t heads) {
  const std::int64_t element = size(from.dtype);
  each_row(from, from_token, from_head, to, to_token, to_head, count, heads, [&](const std::byte* a, std::byte* b) {
    if (from.dim_stride == element && to.dim_stride == element) {
      std::memcpy(b, a, static_cast<std::size_t>(from.dim * element));
      return;
    }
    for (std::int64_t d = 0; d < from.dim; ++d)
      std::memcpy(b + d * to.dim_stride, a + d * from.dim_stride, static_cast<std::size_t>(element));
  });
}

void add(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token, std::int64_t to_head,
         std::int64_t count, std::int64_t heads) {
  each_row(from, from_token, from_head, to, to_token, to_head, count, heads, [&](const std::byte* a, std::byte* b) {
    if (from.dtype == DType::f64)
      add_row<double>(a, from.dim_stride, b, to.dim_stride, from.dim);
    else
      add_row<float>(a, from.dim_stride, b, to.dim_stride, from.dim);
  });
}

void convert(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token, std::int64_t to_head,
             std::int64_t count, std::int64_t heads) {
  if (from.dtype == to.dtype) return copy(from, from_token, from_head, to, to_token, to_head, count, heads);
  each_row(from, from_token, from_head, to, to_token, to_head, count, heads, [&](const std::byte* a, std::byte* b) {
    for (std::int64_t d = 0; d < from.dim; ++d)
      base::store(b + d * to.dim_stride, to.dtype, 0, base::load(const_cast<std::byte*>(a) + d * from.dim_stride, from.dtype, 0));
  });
}

void Buffers::copy(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token,
                   std::int64_t to_head, std::int64_t count, std::int64_t heads) {
  dist::copy(from, from_token, from_head, to, to_token, to_head, count, heads);
}

void Buffers::add(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token,
                  std::int64_t to_head, std::int64_t count, std::int64_t heads) {
  dist::add(from, from_token, from_head, to, to_token, to_head, count, heads);
}

void Buffers::convert(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token,
                      std::int64_t to_head, std::int64_t count, std::int64_t heads) {
  dist::convert(from, from_token, from_head, to, to_token, to_head, count, heads);
}

Rows in_message(std::byte* memory, const Rows& like, std::int64_t count, std::int64_t heads) {
  Rows rows = like;
  rows.data = memory, rows.tokens = count, rows.heads = heads;
  rows.dim_stride = size(like.dtype), rows.head_stride = like.dim * rows.dim_stride, rows.token_stride = heads * rows.head_stride;
  rows.batch_stride = count * rows.token_stride;
  return rows;
}

}  // namespace foveal::dist
