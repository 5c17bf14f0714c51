#pragma once
// AVX-512 (F, BW, DQ, VL): the vector types that src/cpu/kernels/ is written in, and their operations.
#include <immintrin.h>

#include <cstdint>

#include "cpu/simd/vector_ops.h"

namespace foveal::cpu {
namespace {

struct Avx512F32Registers {
  using Real = float;
  using Vec = __m512;
};
struct Avx512F32 : VectorOps<Avx512F32Registers> {
  static constexpr int rows = 6, vectors = 4;  ///< the register tile of a product

  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }

  static Vec load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_first(float* p, Vec x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }

  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec fms(Vec a, Vec b, Vec c) { return _mm512_fmsub_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static bool any_greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
  /// x where p is not zero, else 0.
  static Vec clear_where_zero(Vec x, Vec p) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(p, zero(), _CMP_NEQ_UQ), x); }
  /// x where first <= row < last, else -inf.
  static Vec keep_rows(Vec x, int row, const std::int32_t* first, const std::int32_t* last) {
    const __m512i r = _mm512_set1_epi32(row);
    const __mmask16 keep = _mm512_cmple_epi32_mask(_mm512_loadu_si512(first), r) & _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(last), r);
    return _mm512_mask_mov_ps(set(-__builtin_inff()), keep, x);
  }
  /// 2^x; 0 for -inf and on underflow.
  static Vec exp2(Vec x) {
    const Vec n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);  // x - n, and 0 for an infinity
    return _mm512_scalef_ps(exp2_polynomial<Avx512F32>(r), n);
  }

  static Vec load_bf16(const std::uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
  }
  static void store_bf16(std::uint16_t* p, Vec x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i nearest = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i rounded = _mm512_mask_mov_epi32(nearest, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }
  static Vec load_f16(const std::uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static void store_f16(std::uint16_t* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  /// The sum of each of 16 vectors: 30 shuffles, where a transposition takes 64.
  static Vec sums(const Vec (&r)[16]) {
    Vec of_four[4];
    for (int i = 0; i < 4; ++i) {
      const Vec* const x = r + 4 * i;
      const __m512d a = _mm512_castps_pd(add(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1])));
      const __m512d b = _mm512_castps_pd(add(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3])));
      of_four[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    const auto fold = [](Vec a, Vec b) { return add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd)); };
    return fold(fold(of_four[0], of_four[1]), fold(of_four[2], of_four[3]));
  }
  static void transpose(Vec (&r)[16]) {
    Vec t[16];
    for (int i = 0; i < 16; i += 4) {  // 4 x 4 within each 128-bit lane
      const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r[i], r[i + 1])), b = _mm512_castps_pd(_mm512_unpackhi_ps(r[i], r[i + 1]));
      const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(r[i + 2], r[i + 3])),
                    d = _mm512_castps_pd(_mm512_unpackhi_ps(r[i + 2], r[i + 3]));
      t[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c)), t[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
      t[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d)), t[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    for (int i = 0; i < 4; ++i) {  // then 4 x 4 of those lanes
      const Vec a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
      const Vec c = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88), d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
      r[i] = _mm512_shuffle_f32x4(a, c, 0x88), r[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
      r[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88), r[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
  }
};

struct Avx512F64Registers {
  using Real = double;
  using Vec = __m512d;
};
struct Avx512F64 : VectorOps<Avx512F64Registers> {
  static constexpr int rows = 6, vectors = 4;

  static __mmask8 first(int n) { return static_cast<__mmask8>((1u << n) - 1); }

  static Vec load_first(const double* p, int n) { return _mm512_maskz_loadu_pd(first(n), p); }
  static void store_first(double* p, Vec x, int n) { _mm512_mask_storeu_pd(p, first(n), x); }

  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_pd(a, b, c); }
  static Vec fms(Vec a, Vec b, Vec c) { return _mm512_fmsub_pd(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm512_max_pd(a, b); }
  static bool any_greater(Vec a, Vec b) { return _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ) != 0; }
  static Vec clear_where_zero(Vec x, Vec p) { return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(p, zero(), _CMP_NEQ_UQ), x); }
  static Vec keep_rows(Vec x, int row, const std::int32_t* first, const std::int32_t* last) {
    const __m256i r = _mm256_set1_epi32(row);
    const __mmask8 keep = _mm256_cmple_epi32_mask(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(first)), r) &
                          _mm256_cmpgt_epi32_mask(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(last)), r);
    return _mm512_mask_mov_pd(set(-__builtin_inf()), keep, x);
  }
  static Vec exp2(Vec x) {
    const Vec n = _mm512_roundscale_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec r = _mm512_reduce_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_scalef_pd(exp2_polynomial<Avx512F64>(r), n);
  }

  static Vec sums(const Vec (&r)[8]) {
    const auto pair = [](Vec a, Vec b) { return add(_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b)); };
    const auto fold = [](Vec a, Vec b) { return add(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xdd)); };
    return fold(fold(pair(r[0], r[1]), pair(r[2], r[3])), fold(pair(r[4], r[5]), pair(r[6], r[7])));
  }
  static void transpose(Vec (&r)[8]) {
    Vec t[8];
    for (int i = 0; i < 8; i += 2) t[i] = _mm512_unpacklo_pd(r[i], r[i + 1]), t[i + 1] = _mm512_unpackhi_pd(r[i], r[i + 1]);
    for (int i = 0; i < 2; ++i) {
      const Vec a = _mm512_shuffle_f64x2(t[i], t[i + 2], 0x88), b = _mm512_shuffle_f64x2(t[i], t[i + 2], 0xdd);
      const Vec c = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0x88), d = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0xdd);
      r[i] = _mm512_shuffle_f64x2(a, c, 0x88), r[i + 4] = _mm512_shuffle_f64x2(a, c, 0xdd);
      r[i + 2] = _mm512_shuffle_f64x2(b, d, 0x88), r[i + 6] = _mm512_shuffle_f64x2(b, d, 0xdd);
    }
  }
};

}  // namespace
}  // namespace foveal::cpu
