#pragma once
// Rows between tensors (any strides, any floating type) and kernel buffers: conversion, transposition, zero padding.
#include "cpu/kernels/block_ops.h"
#include "cpu/simd/half.h"

namespace foveal::cpu {
namespace {

inline std::int64_t element_bytes(DType dtype) { return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2; }
inline const char* element(const void* row, DType dtype, std::int64_t index) {
  return static_cast<const char*>(row) + index * element_bytes(dtype);
}

/// Rows a multiple of 4 KB apart map to the same sets of L1 and would evict each other.
inline bool rows_alias(const KeyRows& rows, int keys, int dim) {
  return keys > 8 && rows.row_stride * element_bytes(rows.dtype) % 4096 == 0 && rows.row_stride > padded_dim(dim);
}

template <class V>
typename V::Real load_element(const void* p, DType dtype) {
  if constexpr (sizeof(typename V::Real) == 8) {
    return *static_cast<const double*>(p);
  } else {
    if (dtype == DType::f32) return *static_cast<const float*>(p);
    const std::uint16_t bits = *static_cast<const std::uint16_t*>(p);
    return dtype == DType::bf16 ? from_bf16(bits) : from_f16(bits);
  }
}

template <class V>
void store_element(void* p, DType dtype, typename V::Real x) {
  if constexpr (sizeof(typename V::Real) == 8) {
    *static_cast<double*>(p) = x;
  } else {
    if (dtype == DType::f32)
      *static_cast<float*>(p) = x;
    else
      *static_cast<std::uint16_t*>(p) = dtype == DType::bf16 ? to_bf16(x) : to_f16(x);
  }
}

/// load_row and store_row for strided rows and partial vectors.
template <class V>
__attribute__((noinline)) typename V::Vec load_some(const void* row, DType dtype, std::int64_t stride, int d, int count) {
  using Real = typename V::Real;
  if (stride == 1 && (sizeof(Real) == 8 || dtype == DType::f32) && count < V::width)
    return V::load_first(static_cast<const Real*>(row) + d, count);
  alignas(64) Real x[V::width];
  for (int i = 0; i < V::width; ++i) x[i] = i < count ? load_element<V>(element(row, dtype, (d + i) * stride), dtype) : Real(0);
  return V::load(x);
}

template <class V>
__attribute__((noinline)) void store_some(void* row, DType dtype, std::int64_t stride, int d, int count, typename V::Vec x) {
  using Real = typename V::Real;
  if (stride == 1 && (sizeof(Real) == 8 || dtype == DType::f32) && count < V::width)
    return V::store_first(static_cast<Real*>(row) + d, x, count);
  alignas(64) Real buffer[V::width];
  V::store(buffer, x);
  for (int i = 0; i < count && i < V::width; ++i)
    store_element<V>(const_cast<char*>(element(row, dtype, (d + i) * stride)), dtype, buffer[i]);
}

/// `count` elements of a row from d on as a vector, padded with zeros.
template <class V>
inline __attribute__((always_inline)) typename V::Vec load_row(const void* row, DType dtype, std::int64_t stride, int d, int count) {
  using Real = typename V::Real;
  if (stride != 1 || count < V::width) return load_some<V>(row, dtype, stride, d, count);
  const char* p = element(row, dtype, d);
  if constexpr (sizeof(Real) == 4) {
    if (dtype == DType::bf16) return V::load_bf16(reinterpret_cast<const std::uint16_t*>(p));
    if (dtype == DType::f16) return V::load_f16(reinterpret_cast<const std::uint16_t*>(p));
  }
  return V::loadu(reinterpret_cast<const Real*>(p));
}

template <class V>
inline __attribute__((always_inline)) void store_row(void* row, DType dtype, std::int64_t stride, int d, int count, typename V::Vec x) {
  using Real = typename V::Real;
  if (stride != 1 || count < V::width) return store_some<V>(row, dtype, stride, d, count, x);
  char* p = const_cast<char*>(element(row, dtype, d));
  if constexpr (sizeof(Real) == 4) {
    if (dtype == DType::bf16) return V::store_bf16(reinterpret_cast<std::uint16_t*>(p), x);
    if (dtype == DType::f16) return V::store_f16(reinterpret_cast<std::uint16_t*>(p), x);
  }
  V::storeu(reinterpret_cast<Real*>(p), x);
}

/// panel[d][ld] = rows^T * sign
template <class V>
void transpose_rows(const LaneRows& rows, int dim, typename V::Real sign, typename V::Real* panel, int ld) {
  constexpr int W = V::width;
  const typename V::Vec factor = V::set(sign);
  for (int lane = 0; lane < rows.lanes; lane += W)
    for (int d = 0; d < dim; d += W) {
      typename V::Vec x[W];
      for (int i = 0; i < W; ++i) {
        const void* row = rows.row[lane + i];
        x[i] = row ? V::mul(load_row<V>(row, rows.dtype, rows.stride, d, dim - d), factor) : V::zero();
      }
      V::transpose(x);
      for (int i = 0; i < W && d + i < dim; ++i) V::store(panel + (d + i) * ld + lane, x[i]);
    }
}

/// packed[lane][padded dim]
template <class V>
void copy_lane_rows(const LaneRows& rows, int dim, typename V::Real* packed) {
  const int ld = padded_dim(dim);
  for (int lane = 0; lane < rows.lanes; ++lane) {
    const void* row = rows.row[lane];
    typename V::Real* out = packed + lane * ld;
    for (int d = 0; d < ld; d += V::width)
      V::store(out + d, row && d < dim ? load_row<V>(row, rows.dtype, rows.stride, d, dim - d) : V::zero());
  }
}

/// Whether all elements are finite: 0 * x is NaN for infinity and NaN.
template <class V>
bool finite_rows(const LaneRows& rows, int dim) {
  typename V::Vec sum[2] = {V::zero(), V::zero()};
  for (int lane = 0; lane < rows.lanes; ++lane) {
    const void* row = rows.row[lane];
    for (int d = 0; row && d < dim; d += V::width)
      sum[d / V::width % 2] = V::fma(load_row<V>(row, rows.dtype, rows.stride, d, dim - d), V::zero(), sum[d / V::width % 2]);
  }
  alignas(64) typename V::Real total[V::width];
  V::store(total, V::add(sum[0], sum[1]));
  for (const typename V::Real x : total)
    if (x != x) return false;
  return true;
}

/// packed[key][padded dim]
template <class V>
void copy_key_rows(const KeyRows& rows, int keys, int dim, typename V::Real* packed) {
  const int ld = padded_dim(dim);
  for (int key = 0; key < keys; ++key) {
    const void* row = element(rows.data, rows.dtype, key * rows.row_stride);
    typename V::Real* out = packed + key * ld;
    for (int d = 0; d < dim; d += V::width) V::store(out + d, load_row<V>(row, rows.dtype, rows.stride, d, dim - d));
  }
}

template <class V>
void write_lanes(const typename V::Real* acc, int ld, int dim, const typename V::Real* factor, const LaneRowsOut& rows) {
  constexpr int W = V::width;
  for (int lane = 0; lane < rows.lanes; lane += W) {
    const typename V::Vec scale = V::load(factor + lane);
    for (int d = 0; d < dim; d += W) {
      typename V::Vec x[W];
      for (int i = 0; i < W; ++i) x[i] = d + i < dim ? V::mul(V::load(acc + (d + i) * ld + lane), scale) : V::zero();
      V::transpose(x);
      for (int i = 0; i < W; ++i)
        if (rows.row[lane + i]) store_row<V>(rows.row[lane + i], rows.dtype, rows.stride, d, dim - d, x[i]);
    }
  }
}

template <class V>
void write_keys(const typename V::Real* acc, int keys, int dim, typename V::Real factor, const KeyRowsOut& rows) {
  const int ld = padded_dim(dim);
  const typename V::Vec scale = V::set(factor);
  for (int key = 0; key < keys; ++key) {
    void* row = const_cast<char*>(element(rows.data, rows.dtype, key * rows.row_stride));
    for (int d = 0; d < dim; d += V::width)
      store_row<V>(row, rows.dtype, rows.stride, d, dim - d, V::mul(V::load(acc + std::int64_t{key} * ld + d), scale));
  }
}

/// Adds in the order of dot (element by element), so that where out is a row of v, delta equals dP and dP - delta is exactly 0.
template <class V>
void row_dots(const LaneRows& a, const LaneRows& b, int dim, typename V::Real* result) {
  constexpr int W = V::width;
  const auto load = [dim](const LaneRows& rows, int lane, int d, typename V::Vec(&x)[W]) {
    for (int i = 0; i < W; ++i)
      x[i] = rows.row[lane + i] ? load_row<V>(rows.row[lane + i], rows.dtype, rows.stride, d, dim - d) : V::zero();
    V::transpose(x);
  };
  for (int lane = 0; lane < a.lanes; lane += W) {
    typename V::Vec sum = V::zero();
    for (int d = 0; d < dim; d += W) {
      typename V::Vec x[W], y[W];
      load(a, lane, d, x);
      load(b, lane, d, y);
      for (int i = 0; i < W; ++i) sum = V::fma(x[i], y[i], sum);
    }
    V::store(result + lane, sum);
  }
}

}  // namespace
}  // namespace foveal::cpu
