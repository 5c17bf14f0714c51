#pragma once
// AVX2 with FMA and F16C. avx512.h says what each operation means.
#include <immintrin.h>

#include <cstdint>

#include "cpu/simd/vector_ops.h"

namespace foveal::cpu {
namespace {

struct Avx2F32Registers {
  using Real = float;
  using Vec = __m256;
};
struct Avx2F32 : VectorOps<Avx2F32Registers> {
  static constexpr int rows = 6, vectors = 2;

  static __m256i first(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }

  static Vec load_first(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  static void store_first(float* p, Vec x, int n) { _mm256_maskstore_ps(p, first(n), x); }

  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec fms(Vec a, Vec b, Vec c) { return _mm256_fmsub_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static bool any_greater(Vec a, Vec b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
  static Vec clear_where_zero(Vec x, Vec p) { return _mm256_and_ps(x, _mm256_cmp_ps(p, zero(), _CMP_NEQ_UQ)); }
  static Vec keep_rows(Vec x, int row, const std::int32_t* first, const std::int32_t* last) {
    const __m256i r = _mm256_set1_epi32(row);
    const __m256i below = _mm256_cmpgt_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(first)), r);
    const __m256i inside = _mm256_cmpgt_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(last)), r);
    return _mm256_blendv_ps(set(-__builtin_inff()), x, _mm256_castsi256_ps(_mm256_andnot_si256(below, inside)));
  }
  static Vec exp2(Vec x) { return exp2_by_bits<Avx2F32>(x); }

  static Vec load_bf16(const std::uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
  }
  static void store_bf16(std::uint16_t* p, Vec x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_blendv_epi8(nearest, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q))), 16);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1)));
  }
  static Vec load_f16(const std::uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static void store_f16(std::uint16_t* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  static Vec sums(const Vec (&r)[8]) {
    Vec of_four[2];
    for (int i = 0; i < 2; ++i) {
      const Vec* const x = r + 4 * i;
      const __m256d a = _mm256_castps_pd(add(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1])));
      const __m256d b = _mm256_castps_pd(add(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3])));
      of_four[i] = add(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    return add(_mm256_permute2f128_ps(of_four[0], of_four[1], 0x20), _mm256_permute2f128_ps(of_four[0], of_four[1], 0x31));
  }
  static void transpose(Vec (&r)[8]) {
    Vec t[8];
    for (int i = 0; i < 8; i += 4) {  // 4 x 4 within each 128-bit lane
      const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(r[i], r[i + 1])), b = _mm256_castps_pd(_mm256_unpackhi_ps(r[i], r[i + 1]));
      const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(r[i + 2], r[i + 3])),
                    d = _mm256_castps_pd(_mm256_unpackhi_ps(r[i + 2], r[i + 3]));
      t[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c)), t[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
      t[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d)), t[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
    }
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
      r[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
  }
};

struct Avx2F64Registers {
  using Real = double;
  using Vec = __m256d;
};
struct Avx2F64 : VectorOps<Avx2F64Registers> {
  static constexpr int rows = 6, vectors = 2;

  static __m256i first(int n) { return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3)); }

  static Vec load_first(const double* p, int n) { return _mm256_maskload_pd(p, first(n)); }
  static void store_first(double* p, Vec x, int n) { _mm256_maskstore_pd(p, first(n), x); }

  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_pd(a, b, c); }
  static Vec fms(Vec a, Vec b, Vec c) { return _mm256_fmsub_pd(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm256_max_pd(a, b); }
  static bool any_greater(Vec a, Vec b) { return _mm256_movemask_pd(_mm256_cmp_pd(a, b, _CMP_GT_OQ)) != 0; }
  static Vec clear_where_zero(Vec x, Vec p) { return _mm256_and_pd(x, _mm256_cmp_pd(p, zero(), _CMP_NEQ_UQ)); }
  static Vec keep_rows(Vec x, int row, const std::int32_t* first, const std::int32_t* last) {
    const __m128i r = _mm_set1_epi32(row);
    const __m128i below = _mm_cmpgt_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first)), r);
    const __m128i inside = _mm_cmpgt_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(last)), r);
    return _mm256_blendv_pd(set(-__builtin_inf()), x, _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm_andnot_si128(below, inside))));
  }
  static Vec exp2(Vec x) { return exp2_by_bits<Avx2F64>(x); }

  static Vec sums(const Vec (&r)[4]) {
    const auto pair = [](Vec a, Vec b) { return add(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b)); };
    const Vec a = pair(r[0], r[1]), b = pair(r[2], r[3]);
    return add(_mm256_permute2f128_pd(a, b, 0x20), _mm256_permute2f128_pd(a, b, 0x31));
  }
  static void transpose(Vec (&r)[4]) {
    const Vec a = _mm256_unpacklo_pd(r[0], r[1]), b = _mm256_unpackhi_pd(r[0], r[1]);
    const Vec c = _mm256_unpacklo_pd(r[2], r[3]), d = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(a, c, 0x20), r[1] = _mm256_permute2f128_pd(b, d, 0x20);
    r[2] = _mm256_permute2f128_pd(a, c, 0x31), r[3] = _mm256_permute2f128_pd(b, d, 0x31);
  }
};

}  // namespace
}  // namespace foveal::cpu
