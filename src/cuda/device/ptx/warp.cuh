#pragma once
// Exchange between the lanes of a warp, and small loads.
#include "base.cuh"

namespace foveal::device {

/// The same value in all lanes, said so that the compiler keeps it in a uniform register.
FOVEAL_DEVICE u32 uniform(u32 value) { return __shfl_sync(~0u, value, 0); }

/// Reductions over the four lanes that hold one accumulator row.
FOVEAL_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
FOVEAL_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

FOVEAL_DEVICE void load_pair(u32 shared, float (&value)[2]) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value[0]), "=f"(value[1]) : "r"(shared));
}

FOVEAL_DEVICE float load_float(u32 shared) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(shared));
  return value;
}

/// Stores of what this kernel does not read again.
FOVEAL_DEVICE void store_streaming(float* to, float2 value) {
  asm volatile("st.global.cs.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(value.x), "f"(value.y) : "memory");
}
FOVEAL_DEVICE void store_streaming(float* to, float4 value) {
  asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w) : "memory");
}

FOVEAL_DEVICE void store_word(u32 shared, u32 value) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared), "r"(value) : "memory"); }
FOVEAL_DEVICE void or_shared(u32 shared, u32 value) { asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(shared), "r"(value) : "memory"); }
FOVEAL_DEVICE u32 load_word(u32 shared) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(shared) : "memory");
  return value;
}
FOVEAL_DEVICE void store_zeros(u32 shared) { asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(shared), "r"(0) : "memory"); }

}  // namespace foveal::device
