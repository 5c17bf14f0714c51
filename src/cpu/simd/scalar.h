#pragma once
// The vocabulary of the kernels in plain C++ with the compiler's 16-byte vectors: runs on every processor. See avx512.h for what each
// operation means.
#include <cstdint>

#include "cpu/simd/exp2_coefficients.h"
#include "cpu/simd/half.h"

namespace foveal::cpu {
namespace {

template <class R, class I, int W, int ExponentShift>
struct ScalarVector {
  using Real = R;
  typedef R Vec __attribute__((vector_size(16)));
  typedef I Bits __attribute__((vector_size(16)));
  static constexpr int width = W;
  static constexpr int rows = 4, vectors = 2;

  static Vec zero() { return Vec{}; }
  static Vec set(R x) { return x - Vec{}; }
  static Vec load(const R* p) { return loadu(p); }
  static Vec loadu(const R* p) {
    Vec x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static Vec load_first(const R* p, int n) {
    Vec x{};
    for (int i = 0; i < n; ++i) x[i] = p[i];
    return x;
  }
  static void store(R* p, Vec x) { storeu(p, x); }
  static void storeu(R* p, Vec x) { __builtin_memcpy(p, &x, sizeof x); }
  static void store_first(R* p, Vec x, int n) {
    for (int i = 0; i < n; ++i) p[i] = x[i];
  }

  static Vec add(Vec a, Vec b) { return a + b; }
  static Vec sub(Vec a, Vec b) { return a - b; }
  static Vec mul(Vec a, Vec b) { return a * b; }
  static Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
  static Vec fms(Vec a, Vec b, Vec c) { return a * b - c; }
  static Vec max(Vec a, Vec b) { return a > b ? a : b; }
  static bool any_greater(Vec a, Vec b) {
    const Bits greater = a > b;
    I any = 0;
    for (int i = 0; i < W; ++i) any |= greater[i];
    return any != 0;
  }
  static Vec clear_where_zero(Vec x, Vec p) { return p != zero() ? x : zero(); }
  static Vec keep_rows(Vec x, int row, const std::int32_t* first, const std::int32_t* last) {
    for (int i = 0; i < W; ++i)
      if (row < first[i] || row >= last[i]) x[i] = static_cast<R>(-__builtin_inff());
    return x;
  }
  static Vec exp2(Vec x) {
    constexpr bool is_float = W == 4;
    const Vec lowest = set(is_float ? R(-126) : R(-1022));
    // 1.5 * 2^mantissa bits: the low bits of a sum are the rounded integer.
    const Vec magic = set(is_float ? R(12582912) : R(6755399441055744));
    const Vec clamped = x < lowest ? lowest : x;
    const Vec shifted = clamped + magic;
    const Vec r = clamped - (shifted - magic);
    Vec p;
    if constexpr (is_float) {
      p = set(exp2_f32[5]);
      for (int i = 4; i >= 0; --i) p = p * r + exp2_f32[i];
    } else {
      p = set(exp2_f64[10]);
      for (int i = 9; i >= 0; --i) p = p * r + exp2_f64[i];
    }
    p = p * r + R(1);
    const Bits bits = reinterpret_cast<Bits>(p) + (reinterpret_cast<Bits>(shifted) << ExponentShift);
    return x < lowest ? zero() : reinterpret_cast<Vec>(bits);
  }

  static Vec load_bf16(const std::uint16_t* p) {
    Vec x;
    for (int i = 0; i < W; ++i) x[i] = from_bf16(p[i]);
    return x;
  }
  static void store_bf16(std::uint16_t* p, Vec x) {
    for (int i = 0; i < W; ++i) p[i] = to_bf16(static_cast<float>(x[i]));
  }
  static Vec load_f16(const std::uint16_t* p) {
    Vec x;
    for (int i = 0; i < W; ++i) x[i] = from_f16(p[i]);
    return x;
  }
  static void store_f16(std::uint16_t* p, Vec x) {
    for (int i = 0; i < W; ++i) p[i] = to_f16(static_cast<float>(x[i]));
  }

  static void transpose(Vec (&r)[W]) {
    for (int i = 0; i < W; ++i)
      for (int j = i + 1; j < W; ++j) {
        const R x = r[i][j];
        r[i][j] = r[j][i];
        r[j][i] = x;
      }
  }
};

using ScalarF32 = ScalarVector<float, std::int32_t, 4, 23>;
using ScalarF64 = ScalarVector<double, std::int64_t, 2, 52>;

}  // namespace
}  // namespace foveal::cpu
