#pragma once
// sm_80 instructions: mma.sync, cp.async.
#include "element.cuh"
#include "ptx/warp.cuh"

namespace foveal::device {

/// d += a b; a: 16 x 16, b: 16 x 8 (k x n). Lane = 4 g + t. d: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
FOVEAL_DEVICE void mma(bf16, float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
FOVEAL_DEVICE void mma(f16, float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Copies kBytes from global to shared memory without waiting; writes zeros instead when `valid` is false.
template <int kBytes>
FOVEAL_DEVICE void copy_async(void* shared, const void* global, bool valid) {
  const int source_bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)), "l"(global), "n"(kBytes), "r"(source_bytes)
                 : "memory");
  }
}
FOVEAL_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most kPending of this thread's groups are unfinished.
template <int kPending>
FOVEAL_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace foveal::device
