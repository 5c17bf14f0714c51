// The C interface in C++11 without exceptions: compiled, not run.
#include <foveal/foveal_c.h>

int forward_with_defaults(const foveal_tensor& q, const foveal_tensor& out) {
  const foveal_attention attention = FOVEAL_INIT(foveal_attention);
  const foveal_options options = FOVEAL_INIT(foveal_options);
  foveal_call call = FOVEAL_INIT(foveal_call);
  call.q = call.k = call.v = &q;
  call.out = &out;
  return foveal_run(&attention, &call, &options, nullptr);
}
