#pragma once
// Integer names, warp helpers and the 16-bit conversions. Everything under device/ compiles alone: NVRTC, no toolkit headers.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
#define FOVEAL_INFINITY __int_as_float(0x7f800000)

#define FOVEAL_DEVICE __device__ __forceinline__

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

/// The same value in all lanes, said so that the compiler keeps it in a uniform register.
FOVEAL_DEVICE u32 uniform(u32 value) { return __shfl_sync(~0u, value, 0); }

FOVEAL_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

FOVEAL_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two floats to one register of two 16-bit values, `low` in the low half.
template <bool bf16>
FOVEAL_DEVICE u32 pack16(float low, float high) {
  u32 packed;
  if constexpr (bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

template <bool bf16>
FOVEAL_DEVICE float unpack16_low(u32 packed) {
  if constexpr (bf16) return __int_as_float(packed << 16);
  float value;
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(value) : "r"(packed));
  return value;
}

template <bool bf16>
FOVEAL_DEVICE float unpack16_high(u32 packed) {
  if constexpr (bf16) return __int_as_float(packed & 0xffff0000u);
  float value;
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(value) : "r"(packed));
  return value;
}

FOVEAL_DEVICE void load_pair(u32 shared, float (&value)[2]) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value[0]), "=f"(value[1]) : "r"(shared));
}

/// Reductions over the four lanes that hold one accumulator row.
FOVEAL_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

FOVEAL_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
