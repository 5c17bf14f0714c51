#include <immintrin.h>

#include "loops.h"
#include "vector_loops.h"

namespace foveal::micro {

double loop_fma_avx512(std::int64_t count) {
  const __m512 a = _mm512_set1_ps(1e-3f);
  return register_loop<__m512>(
      count, 32, a, a, [](__m512& acc, __m512 x, __m512 y) { acc = _mm512_fmadd_ps(x, y, acc); }, Chains<24>{});
}

double load_loop_avx512(std::int64_t count) {
  return load_loop<6, 4, __m512>(count, [](float x) { return _mm512_set1_ps(x); });
}

}  // namespace foveal::micro
