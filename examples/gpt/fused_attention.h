#pragma once
// The model's attention as a foveal::Attention, for training (fused_attention.cpp) and sampling (decoder.cpp).
#include <foveal/foveal.h>

#include "attention.h"

namespace gpt {

inline foveal::Param bias_param(std::int64_t heads, std::int64_t reach) { return {"bias", {heads, reach + 1}}; }

inline foveal::Attention describe_attention(const foveal::Param& bias) {
  using namespace foveal::symbols;
  const std::int64_t reach = bias.shape()[1] - 1;
  return {.score_mod = score + bias(head, clamp(q_idx - kv_idx, 0, reach)), .mask = foveal::causal()};
}

template <class T>
constexpr foveal::DType dtype_of = sizeof(T) == 4 ? foveal::DType::f32 : foveal::DType::f64;

/// foveal takes writable pointers; inputs are only read.
template <class T>
foveal::TensorView view(const T* data, std::initializer_list<std::int64_t> sizes, std::initializer_list<std::int64_t> strides,
                        foveal::Device device = {}) {
  return {const_cast<T*>(data), dtype_of<T>, sizes, strides, device};
}
template <class T>
foveal::TensorView view(const T* data, std::initializer_list<std::int64_t> sizes, foveal::Device device = {}) {
  return {const_cast<T*>(data), dtype_of<T>, sizes, device};
}

}  // namespace gpt
