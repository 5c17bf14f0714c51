#pragma once
// Warp shuffles, reductions and small loads.
#include "base.cuh"

namespace foveal::device {

/// A warp-uniform value: the shuffle lets the compiler keep it in a uniform register.
FOVEAL_DEVICE u32 uniform(u32 value) { return __shfl_sync(~0u, value, 0); }

/// Keeps a value in a register: the compiler would otherwise rematerialise it, and reading threadIdx takes as long as a shared-memory load.
FOVEAL_DEVICE int keep_in_register(int value) { return __shfl_sync(~0u, value, lane_id()); }

/// Reductions over the quad of lanes that holds one accumulator row.
FOVEAL_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
template <class Real>
FOVEAL_DEVICE Real quad_sum(Real x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/// Sum over the warp, or over each group of `lanes` lanes; every lane gets the result.
template <int lanes = kWarp, class Real>
FOVEAL_DEVICE Real warp_sum(Real x) {
#pragma unroll
  for (int lane = lanes / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}

FOVEAL_DEVICE void load_pair(u32 shared, float (&value)[2]) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value[0]), "=f"(value[1]) : "r"(shared));
}

FOVEAL_DEVICE void load_words(u32 shared, u32 (&value)[4]) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3]) : "r"(shared));
}

FOVEAL_DEVICE float load_float(u32 shared) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(shared));
  return value;
}

/// Streaming stores, for data that this kernel does not read again.
FOVEAL_DEVICE void store_streaming(float* to, float2 value) {
  asm volatile("st.global.cs.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(value.x), "f"(value.y) : "memory");
}
FOVEAL_DEVICE void store_streaming(void* to, uint4 value) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w) : "memory");
}

/// Forces a value that is never negative to be computed here: the store never happens.
FOVEAL_DEVICE void store_if_negative(float value) {
  asm volatile(
      "{\n"
      ".reg .pred negative;\n"
      "setp.lt.f32 negative, %0, 0f00000000;\n"
      "@negative st.shared.f32 [%1], %0;\n"
      "}" ::"f"(value),
      "r"(0)
      : "memory");
}

FOVEAL_DEVICE void store_word(u32 shared, u32 value) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared), "r"(value) : "memory"); }
FOVEAL_DEVICE void or_shared(u32 shared, u32 value) { asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(shared), "r"(value) : "memory"); }
FOVEAL_DEVICE u32 load_word(u32 shared) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(shared) : "memory");
  return value;
}
FOVEAL_DEVICE u32 load_half(u32 shared) {
  u16 value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(shared) : "memory");
  return value;
}
/// Extends a byte of a word to 32 bits in one instruction. (__byte_perm has no sign mode.)
template <bool has_sign>
FOVEAL_DEVICE u32 widen_byte(u32 word, u32 byte) {
  const u32 above = has_sign ? 8 + byte : 4;  // replicated sign, or zeros
  u32 wide;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(wide) : "r"(word), "r"(above * 0x1110 + byte));
  return wide;
}
/// For words that other threads may write at the same time, where any of the values will do. atomic: for tools that would report a race.
/// (Relaxed atomics in release builds cost 1 % of a forward pass through instruction order.)
template <bool atomic>
FOVEAL_DEVICE void store_any(u32 shared, u32 value) {
  if constexpr (!atomic) return store_word(shared, value);
  u32 before;
  asm volatile("atom.relaxed.cta.shared.exch.b32 %0, [%1], %2;" : "=r"(before) : "r"(shared), "r"(value) : "memory");
}
template <bool atomic>
FOVEAL_DEVICE u32 load_any(u32 shared) {
  if constexpr (!atomic) return load_word(shared);
  u32 value;
  asm volatile("atom.relaxed.cta.shared.or.b32 %0, [%1], 0;" : "=r"(value) : "r"(shared) : "memory");
  return value;
}
/// ldmatrix of four 8 x 8 blocks of 16-bit elements; lanes 8 j .. 8 j + 7 give the row addresses of block j. Lane 4 g + t gets (g, 2t) and
/// (g, 2t + 1) of each, or transposed (2t, g) and (2t + 1, g).
template <bool transposed>
FOVEAL_DEVICE void ldmatrix(u32 (&block)[4], u32 row) {
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(block[0]), "=r"(block[1]), "=r"(block[2]), "=r"(block[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(block[0]), "=r"(block[1]), "=r"(block[2]), "=r"(block[3])
                 : "r"(row)
                 : "memory");
  }
}
/// Adds to four floats in global memory, in any order with others that do.
FOVEAL_DEVICE void add_four(float* to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
FOVEAL_DEVICE void store_zeros(u32 shared) { asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(shared), "r"(0) : "memory"); }

}  // namespace foveal::device
