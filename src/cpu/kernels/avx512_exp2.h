#pragma once
// Exponentials of the bf16 kernels on AVX-512, each as accurate as its use needs.
#include "cpu/kernels/avx512_bf16.h"

namespace foveal::cpu {
namespace {

/// 2^x for x <= 127, relative error 7.5e-5: a third of a percent of the rounding to bf16 that follows. Exactly zero below -126; NaN stays
/// NaN. Adding 1.5 * 2^23 rounds x to an integer n in the low bits; 2^(x-n) is a cubic, and n is added to its exponent.
inline __m512 exp2_bf16(__m512 x) {
  const __m512 magic = splat(12582912.0f);
  const __mmask16 normal = _mm512_cmp_ps_mask(x, splat(-126.0f), _CMP_NLT_UQ);
  const __m512 shifted = _mm512_add_ps(x, magic);
  const __m512 f = _mm512_sub_ps(x, _mm512_sub_ps(shifted, magic));
  __m512 p = _mm512_fmadd_ps(splat(0.05517167f), f, splat(0.24261113f));
  p = _mm512_fmadd_ps(p, f, splat(0.69326099f));
  p = _mm512_fmadd_ps(p, f, splat(0.99992807f));
  return _mm512_castsi512_ps(_mm512_maskz_add_epi32(normal, _mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
}

/// 2^z by a table of 2^(j/32) and a quadratic: relative error 5.3e-8 before rounding, 1 at 0, zero below -126.
struct TableExp {
  alignas(64) static constexpr std::uint32_t kTable[32] = {  // bits of 2^(j/32), less j << 18
      0x3f800000, 0x3f7ecd87, 0x3f7daac3, 0x3f7c980f, 0x3f7b95c2, 0x3f7aa43a, 0x3f79c3d3, 0x3f78f4f0, 0x3f7837f0, 0x3f778d3a, 0x3f76f532,
      0x3f767043, 0x3f75fed7, 0x3f75a15b, 0x3f75583f, 0x3f7523f6, 0x3f7504f3, 0x3f74fbaf, 0x3f7508a4, 0x3f752c4d, 0x3f75672a, 0x3f75b9be,
      0x3f76248c, 0x3f76a81e, 0x3f7744fd, 0x3f77fbb8, 0x3f78ccdf, 0x3f79b907, 0x3f7ac0c7, 0x3f7be4ba, 0x3f7d257d, 0x3f7e83b3};
  __m512i low = _mm512_load_si512(kTable), high = _mm512_load_si512(kTable + 16);
  __m512 magic = splat(393216.0f), c1 = splat(0.24022745f), c0 = splat(0.69315734f), least = splat(-126.0f);

  __m512 operator()(__m512 z) const {
    const __mmask16 normal = _mm512_cmp_ps_mask(z, least, _CMP_NLT_UQ);
    // In units of 1/32 the low bits of z + magic are the nearest integer: the table's index, and above it the exponent.
    const __m512i n = _mm512_castps_si512(_mm512_add_ps(z, magic));
    const __m512 r = _mm512_reduce_ps(z, 5 << 4 | _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 root = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_permutex2var_epi32(low, n, high), _mm512_slli_epi32(n, 18)));
    return _mm512_maskz_fmadd_ps(normal, _mm512_fmadd_ps(c1, r, c0), _mm512_mul_ps(root, r), root);
  }
};

}  // namespace
}  // namespace foveal::cpu
