// What foveal_att.cpp takes from llm.c's headers.
#pragma once
#include <cstdint>

struct floatX {
  std::uint16_t bits;
};
typedef struct CUstream_st* cudaStream_t;

void create_cudnn();
void destroy_cudnn();
void attention_forward_cudnn(floatX* out, float* stats, floatX* inp, int B, int T, int NH, int C, cudaStream_t stream);
void attention_backward_cudnn(floatX* dqkvr, floatX* dout, floatX* qkvr, floatX* o, float* stats, int B, int T, int NH, int C,
                              cudaStream_t stream);
