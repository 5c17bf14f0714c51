#pragma once
// The tables that src/cpu/targets/*.cpp define, for dispatch.cpp.
#include "cpu/kernels/block_ops.h"

namespace foveal::cpu::targets {

extern const BlockOps<float> scalar_f32;
extern const BlockOps<double> scalar_f64;
#if defined(__aarch64__)
extern const BlockOps<float> neon_f32;
extern const BlockOps<double> neon_f64;
extern const BlockOps<float> neonbf16_bf16;
extern const BlockOps<float> neonfhm_f16;
#endif
#if defined(__x86_64__)
extern const BlockOps<float> avx2_f32;
extern const BlockOps<double> avx2_f64;
extern const DecodeTables avx2_decode;
extern const BlockOps<float> avx512_f32;
extern const BlockOps<double> avx512_f64;
extern const DecodeTables avx512_decode;
extern const BlockOps<float> avx512bf16_bf16;
extern const BlockOps<float> amx_bf16;
#endif

}  // namespace foveal::cpu::targets
