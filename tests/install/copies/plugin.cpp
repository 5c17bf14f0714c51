// NAME(threads): attention with this copy of the library, with so many threads; how many it was set to before.
#include <foveal/foveal.h>

#include <vector>

extern "C" __attribute__((visibility("default"))) int NAME(int threads) {
  const int before = foveal::num_threads();
  foveal::set_num_threads(threads);
  std::vector<float> q(2 * 16 * 4 * 8, 0.5f), out(q.size());
  const foveal::TensorView in(q.data(), foveal::DType::f32, {2, 16, 4, 8}), result(out.data(), foveal::DType::f32, {2, 16, 4, 8});
  foveal::forward({.mask = foveal::causal()}, {.q = in, .k = in, .v = in}, {.out = result});
  try {
    foveal::forward({.mask = foveal::causal()}, {.q = in, .k = result, .v = {}}, {.out = result});
    return -1;
  } catch (const foveal::Error&) {  // of this copy
  }
  return out[7] == 0.5f ? before : -1;
}
