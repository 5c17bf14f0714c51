#include <immintrin.h>

#include "loops.h"
#include "vector_loops.h"

namespace foveal::micro {

double loop_bf16_ymm(std::int64_t count) {
  const __m256bh a = _mm512_cvtneps_pbh(_mm512_set1_ps(1e-3f));
  return register_loop<__m256>(
      count, 32, a, a, [](__m256& acc, __m256bh x, __m256bh y) { acc = _mm256_dpbf16_ps(acc, x, y); }, Chains<12>{});
}

double loop_bf16_zmm(std::int64_t count) {
  const __m512 one = _mm512_set1_ps(1e-3f);
  const __m512bh a = _mm512_cvtne2ps_pbh(one, one);
  return register_loop<__m512>(
      count, 64, a, a, [](__m512& acc, __m512bh x, __m512bh y) { acc = _mm512_dpbf16_ps(acc, x, y); }, Chains<24>{});
}

}  // namespace foveal::micro
