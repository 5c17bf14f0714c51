// The functions that llm.c's cudnn_att.h declares, by foveal: compiled instead of cudnn_att.cpp.
#include <foveal/foveal_c.h>

#include <cstdio>
#include <cstdlib>

#include "cudnn_att.h"

namespace {

constexpr std::int32_t dtype = sizeof(floatX) == 4 ? FOVEAL_F32 :
#if defined(ENABLE_FP16)
                                                   FOVEAL_F16;
#else
                                                   FOVEAL_BF16;
#endif

void check(int code) {
  if (code == FOVEAL_OK) return;
  std::fprintf(stderr, "%s\n", foveal_last_error());
  std::exit(EXIT_FAILURE);
}

foveal_tensor on_device(foveal_tensor tensor) {
  tensor.device_kind = FOVEAL_CUDA, tensor.device_index = -1;
  return tensor;
}

struct Packed {
  foveal_tensor q, k, v;
  Packed(floatX* data, int B, int T, int NH, int C) {
    foveal_tensor qkv[3];
    check(foveal_packed_qkv(qkv, data, dtype, B, T, C, NH));
    q = on_device(qkv[0]), k = on_device(qkv[1]), v = on_device(qkv[2]);
  }
};

foveal_tensor tokens(floatX* data, int B, int T, int NH, int C) {
  const std::int64_t sizes[] = {B, T, NH, C / NH};
  foveal_tensor tensor;
  check(foveal_contiguous(&tensor, data, dtype, 4, sizes));
  return on_device(tensor);
}

foveal_tensor rows(float* data, int B, int T, int NH) {
  const std::int64_t sizes[] = {B, NH, T};
  foveal_tensor tensor;
  check(foveal_contiguous(&tensor, data, FOVEAL_F32, 3, sizes));
  return on_device(tensor);
}

void run(foveal_call& call, cudaStream_t stream) {
  call.struct_size = sizeof call;
  foveal_attention attention{};
  attention.struct_size = sizeof attention;
  attention.mask = "causal()";
  check(foveal_run(&attention, &call, nullptr, stream));
}

}  // namespace

void create_cudnn() {}
void destroy_cudnn() {}

void attention_forward_cudnn(floatX* out, float* stats, floatX* inp, int B, int T, int NH, int C, cudaStream_t stream) {
  const Packed in(inp, B, T, NH, C);
  const foveal_tensor tout = tokens(out, B, T, NH, C), lse = rows(stats, B, T, NH);
  foveal_call call{};
  call.q = &in.q, call.k = &in.k, call.v = &in.v, call.out = &tout, call.lse = &lse;
  run(call, stream);
}

void attention_backward_cudnn(floatX* dqkvr, floatX* dout, floatX* qkvr, floatX* o, float* stats, int B, int T, int NH, int C,
                              cudaStream_t stream) {
  const Packed in(qkvr, B, T, NH, C), gradient(dqkvr, B, T, NH, C);
  const foveal_tensor tout = tokens(o, B, T, NH, C), tdout = tokens(dout, B, T, NH, C), lse = rows(stats, B, T, NH);
  foveal_call call{};
  call.pass = FOVEAL_BACKWARD;
  call.q = &in.q, call.k = &in.k, call.v = &in.v, call.out = &tout, call.lse = &lse, call.dout = &tdout;
  call.dq = &gradient.q, call.dk = &gradient.k, call.dv = &gradient.v;
  run(call, stream);
}
