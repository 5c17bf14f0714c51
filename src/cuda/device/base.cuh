#pragma once
// Used by every kernel. Toolkit headers are neither needed nor allowed: NVRTC compiles without them.
#define FOVEAL_DEVICE __device__ __forceinline__
#define FOVEAL_CALLED __device__ __noinline__

namespace foveal::device {

using i64 = long long;
using u64 = unsigned long long;
using u32 = unsigned int;
using u16 = unsigned short;

constexpr int kWarp = 32;
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

FOVEAL_DEVICE constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }
FOVEAL_DEVICE constexpr int round_up(int a, int b) { return divide_up(a, b) * b; }
FOVEAL_DEVICE int lane_id() { return threadIdx.x % kWarp; }
FOVEAL_DEVICE int warp_id() { return threadIdx.x / kWarp; }

FOVEAL_DEVICE u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

FOVEAL_DEVICE float infinity() { return __int_as_float(0x7f800000); }

/// A compile-time bool passed as a function argument.
template <bool x>
struct Constant {
  static constexpr bool value = x;
};

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

}  // namespace foveal::device
