#include <immintrin.h>

#include "loops.h"
#include "vector_loops.h"

namespace foveal::micro {

double loop_fma_avx2(std::int64_t count) {
  const __m256 a = _mm256_set1_ps(1e-3f);
  return register_loop<__m256>(
      count, 16, a, a, [](__m256& acc, __m256 x, __m256 y) { acc = _mm256_fmadd_ps(x, y, acc); }, Chains<12>{});
}

double load_loop_avx2(std::int64_t count) {
  return load_loop<6, 2, __m256>(count, [](float x) { return _mm256_set1_ps(x); });
}

}  // namespace foveal::micro
