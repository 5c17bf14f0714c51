#include <foveal/foveal_c.h>
#include <foveal/version.h>
#include <stdio.h>
#include <string.h>

static foveal_tensor view(float* data) {
  foveal_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data, t.dtype = FOVEAL_F32, t.rank = 4;
  t.sizes[0] = 2, t.sizes[1] = 16, t.sizes[2] = 4, t.sizes[3] = 8;
  t.strides[3] = 1;
  for (int i = 2; i >= 0; --i) t.strides[i] = t.strides[i + 1] * t.sizes[i + 1];
  return t;
}

int main(void) {
  static float q[2 * 16 * 4 * 8], out[2 * 16 * 4 * 8];
  for (size_t i = 0; i < sizeof q / sizeof *q; ++i) q[i] = 0.5f;
  const foveal_tensor in = view(q), result = view(out);
  foveal_attention attention = FOVEAL_INIT(foveal_attention);
  attention.mask = "causal()";
  foveal_call call = FOVEAL_INIT(foveal_call);
  call.q = call.k = call.v = &in, call.out = &result;
  if (foveal_run(&attention, &call, NULL, NULL) != FOVEAL_OK) {
    fprintf(stderr, "%s\n", foveal_last_error());
    return 1;
  }
  printf("foveal %s: %g\n", foveal_version(), out[7]);
  return out[7] == 0.5f && strcmp(foveal_version(), FOVEAL_VERSION) == 0 ? 0 : 1;
}
