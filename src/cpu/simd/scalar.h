#pragma once
// Portable C++ on the compiler's 16-byte vectors. avx512.h says what each operation means.
#include <cstdint>

#include "cpu/simd/half.h"
#include "cpu/simd/vector_ops.h"

namespace foveal::cpu {
namespace {

template <class R>
struct ScalarRegisters {
  using Real = R;
  typedef R Vec __attribute__((vector_size(16)));
};
template <class R>
struct ScalarVector : VectorOps<ScalarRegisters<R>> {
  using Base = VectorOps<ScalarRegisters<R>>;
  using Base::width, Base::zero;
  using typename Base::Vec;
  static constexpr int rows = 4, vectors = 2;

  static Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
  static Vec fms(Vec a, Vec b, Vec c) { return a * b - c; }
  static Vec max(Vec a, Vec b) { return a > b ? a : b; }
  static bool any_greater(Vec a, Vec b) {
    bool any = false;
    for (int i = 0; i < width; ++i) any |= a[i] > b[i];
    return any;
  }
  static Vec clear_where_zero(Vec x, Vec p) { return p != zero() ? x : zero(); }
  static Vec keep_rows(Vec x, int row, const std::int32_t* first, const std::int32_t* last) {
    for (int i = 0; i < width; ++i)
      if (row < first[i] || row >= last[i]) x[i] = static_cast<R>(-__builtin_inff());
    return x;
  }
  static Vec exp2(Vec x) { return exp2_by_bits<ScalarVector>(x); }

  static Vec load_bf16(const std::uint16_t* p) {
    Vec x;
    for (int i = 0; i < width; ++i) x[i] = from_bf16(p[i]);
    return x;
  }
  static void store_bf16(std::uint16_t* p, Vec x) {
    for (int i = 0; i < width; ++i) p[i] = to_bf16(static_cast<float>(x[i]));
  }
  static Vec load_f16(const std::uint16_t* p) {
    Vec x;
    for (int i = 0; i < width; ++i) x[i] = from_f16(p[i]);
    return x;
  }
  static void store_f16(std::uint16_t* p, Vec x) {
    for (int i = 0; i < width; ++i) p[i] = to_f16(static_cast<float>(x[i]));
  }

  static void transpose(Vec (&r)[width]) {
    for (int i = 0; i < width; ++i)
      for (int j = i + 1; j < width; ++j) {
        const R x = r[i][j];
        r[i][j] = r[j][i];
        r[j][i] = x;
      }
  }
};

using ScalarF32 = ScalarVector<float>;
using ScalarF64 = ScalarVector<double>;

}  // namespace
}  // namespace foveal::cpu
