#include "loops.h"
#include "vector_loops.h"

namespace foveal::micro {

using Vector [[gnu::vector_size(16)]] = float;

double loop_fma_scalar(std::int64_t count) {
  const Vector a = {1e-3f, 1e-3f, 1e-3f, 1e-3f};
  return register_loop<Vector>(
      count, 8, a, a, [](Vector& acc, Vector x, Vector y) { acc += x * y; }, Chains<8>{});
}

double load_loop_scalar(std::int64_t count) {
  return load_loop<4, 2, Vector>(count, [](float x) { return Vector{x, x, x, x}; });
}

}  // namespace foveal::micro
