#pragma once
// The GEMM microkernel behind dot, mix and spread: C[m][n] (+)= sum over k of A(m, k) * B[k][n]. Columns of B and C are vectors; elements
// of A are broadcast from memory, so A needs no packing and odd sizes are loop counts, not masks.
#include <cstdint>

namespace foveal::cpu {
namespace {

/// Layout of A: row-major (dot, spread) or column-major (mix).
enum class Order { k_contiguous, m_contiguous };

template <class V, int Rows, int Vectors, Order order, bool accumulate>
__attribute__((noinline)) void gemm_tile(const typename V::Real* a, std::int64_t a_stride, const typename V::Real* b, std::int64_t b_stride,
                                         typename V::Real* c, std::int64_t c_stride, int depth) {
  typename V::Vec acc[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) acc[r][v] = accumulate ? V::load(c + r * c_stride + v * V::width) : V::zero();
#pragma GCC unroll 2
  for (int k = 0; k < depth; ++k) {
    typename V::Vec row[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) row[v] = V::load(b + v * V::width);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const typename V::Vec x = V::set(order == Order::k_contiguous ? a[r * a_stride] : a[r]);
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) acc[r][v] = V::fma(x, row[v], acc[r][v]);
    }
    a += order == Order::k_contiguous ? 1 : a_stride;
    b += b_stride;
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) V::store(c + r * c_stride + v * V::width, acc[r][v]);
}

template <class V, int Vectors, Order order, bool accumulate>
void gemm_rows(int m, int depth, const typename V::Real* a, std::int64_t a_stride, const typename V::Real* b, std::int64_t b_stride,
               typename V::Real* c, std::int64_t c_stride) {
  const std::int64_t a_row = order == Order::k_contiguous ? a_stride : 1;
  const auto rows = [&]<int Rows>() {
    gemm_tile<V, Rows, Vectors, order, accumulate>(a, a_stride, b, b_stride, c, c_stride, depth);
    a += Rows * a_row, c += Rows * c_stride, m -= Rows;
  };
  while (m >= V::rows) rows.template operator()<V::rows>();
  if constexpr (V::rows > 4) {
    if (m >= 4) rows.template operator()<4>();
  }
  if (m >= 2) rows.template operator()<2>();
  if (m >= 1) rows.template operator()<1>();
}

/// n is a multiple of the vector width.
template <class V, Order order, bool accumulate>
void gemm(int m, int n, int depth, const typename V::Real* a, std::int64_t a_stride, const typename V::Real* b, std::int64_t b_stride,
          typename V::Real* c, std::int64_t c_stride) {
  constexpr int W = V::width;
  int column = 0;
  const auto columns = [&]<int Vectors>() {
    gemm_rows<V, Vectors, order, accumulate>(m, depth, a, a_stride, b + column, b_stride, c + column, c_stride);
    column += Vectors * W;
  };
  while (n - column >= V::vectors * W) columns.template operator()<V::vectors>();
  if constexpr (V::vectors > 2) {
    if (n - column >= 2 * W) columns.template operator()<2>();
  }
  if (n - column >= W) columns.template operator()<1>();
}

}  // namespace
}  // namespace foveal::cpu
