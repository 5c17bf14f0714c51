#pragma once
// Advanced SIMD, which every AArch64 processor has. avx512.h says what each operation means.
#include <arm_neon.h>

#include <cstdint>

#include "cpu/simd/vector_ops.h"

namespace foveal::cpu {
namespace {

struct NeonF32Registers {
  using Real = float;
  using Vec = float32x4_t;
};
struct NeonF32 : VectorOps<NeonF32Registers> {
  static constexpr int rows = 6, vectors = 4;  // 24 accumulators, 4 columns and a broadcast of 32 registers

  static Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
  static Vec fms(Vec a, Vec b, Vec c) { return vfmaq_f32(vnegq_f32(c), a, b); }
  static Vec max(Vec a, Vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }  // b where one is a NaN: FMAX would propagate it
  static bool any_greater(Vec a, Vec b) { return vmaxvq_u32(vcgtq_f32(a, b)) != 0; }
  static Vec clear_where_zero(Vec x, Vec p) { return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vceqzq_f32(p))); }
  static Vec keep_rows(Vec x, int row, const std::int32_t* first, const std::int32_t* last) {
    const int32x4_t r = vdupq_n_s32(row);
    return vbslq_f32(vandq_u32(vcleq_s32(vld1q_s32(first), r), vcgtq_s32(vld1q_s32(last), r)), x, set(-__builtin_inff()));
  }
  static Vec exp2(Vec x) { return exp2_by_bits<NeonF32>(x); }

  static Vec load_bf16(const std::uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
  static void store_bf16(std::uint16_t* p, Vec x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t nearest = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), nearest, quiet), 16));
  }
  static Vec load_f16(const std::uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  static void store_f16(std::uint16_t* p, Vec x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }

  static void transpose(Vec (&r)[4]) {
    const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(r[0], r[1])), b = vreinterpretq_f64_f32(vtrn2q_f32(r[0], r[1]));
    const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(r[2], r[3])), d = vreinterpretq_f64_f32(vtrn2q_f32(r[2], r[3]));
    r[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c)), r[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
    r[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c)), r[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
  }
};

struct NeonF64Registers {
  using Real = double;
  using Vec = float64x2_t;
};
struct NeonF64 : VectorOps<NeonF64Registers> {
  static constexpr int rows = 6, vectors = 4;

  static Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f64(c, a, b); }
  static Vec fms(Vec a, Vec b, Vec c) { return vfmaq_f64(vnegq_f64(c), a, b); }
  static Vec max(Vec a, Vec b) { return vbslq_f64(vcgtq_f64(a, b), a, b); }
  static bool any_greater(Vec a, Vec b) { return vmaxvq_u32(vreinterpretq_u32_u64(vcgtq_f64(a, b))) != 0; }
  static Vec clear_where_zero(Vec x, Vec p) {
    return vreinterpretq_f64_u64(vreinterpretq_u64_u32(vbicq_u32(vreinterpretq_u32_f64(x), vreinterpretq_u32_u64(vceqzq_f64(p)))));
  }
  static Vec keep_rows(Vec x, int row, const std::int32_t* first, const std::int32_t* last) {
    const int64x2_t r = vdupq_n_s64(row), from = vmovl_s32(vld1_s32(first)), to = vmovl_s32(vld1_s32(last));
    return vbslq_f64(vandq_u64(vcleq_s64(from, r), vcgtq_s64(to, r)), x, set(-__builtin_inf()));
  }
  static Vec exp2(Vec x) { return exp2_by_bits<NeonF64>(x); }

  static void transpose(Vec (&r)[2]) {
    const Vec a = vtrn1q_f64(r[0], r[1]), b = vtrn2q_f64(r[0], r[1]);
    r[0] = a, r[1] = b;
  }
};

}  // namespace
}  // namespace foveal::cpu
