#include <foveal/foveal.h>

#include <cstdio>
#include <vector>

int main() {
  std::vector<float> q(2 * 16 * 4 * 8, 0.5f), out(q.size());
  const foveal::TensorView in(q.data(), foveal::DType::f32, {2, 16, 4, 8}), result(out.data(), foveal::DType::f32, {2, 16, 4, 8});
  foveal::forward({.mask = foveal::causal()}, {.q = in, .k = in, .v = in}, {.out = result});
  std::printf("%g\n", static_cast<double>(out[7]));
  return out[7] == 0.5f ? 0 : 1;
}
