#pragma once
// One name for sgemm and dgemm: c = alpha op(a) op(b) + beta c, all row-major with the given leading dimensions.
#include <cblas.h>

#include <cstdint>

namespace gpt {

enum class Transposed { no, yes };

struct GemmShape {
  std::int64_t rows, columns, depth;
};

template <class T>
void gemm(GemmShape shape, T alpha, const T* a, std::int64_t lda, Transposed ta, const T* b, std::int64_t ldb, Transposed tb, T beta, T* c,
          std::int64_t ldc) {
  const auto op_a = ta == Transposed::yes ? CblasTrans : CblasNoTrans;
  const auto op_b = tb == Transposed::yes ? CblasTrans : CblasNoTrans;
  const auto m = static_cast<blasint>(shape.rows), n = static_cast<blasint>(shape.columns), k = static_cast<blasint>(shape.depth);
  const auto a_stride = static_cast<blasint>(lda), b_stride = static_cast<blasint>(ldb), c_stride = static_cast<blasint>(ldc);
  if constexpr (sizeof(T) == 4) {
    cblas_sgemm(CblasRowMajor, op_a, op_b, m, n, k, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
  } else {
    cblas_dgemm(CblasRowMajor, op_a, op_b, m, n, k, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
  }
}

}  // namespace gpt
