#pragma once
// What NVRTC knows without an include, for compilers and tools that do not: names and types, no meaning.
#include <cmath>

using std::fabs, std::isfinite;

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// `asm("...")` is nothing, `asm volatile("...")` is `asm("")`: constraints are those of another machine.
#define asm(...)
#define volatile(...) ("")

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct uint3 {
  unsigned x, y, z;
};
extern const uint3 threadIdx, blockIdx, blockDim, gridDim;
uint2 make_uint2(unsigned, unsigned);
uint4 make_uint4(unsigned, unsigned, unsigned, unsigned);
float2 make_float2(float, float);
float4 make_float4(float, float, float, float);
void __syncthreads();
int __syncthreads_or(int);
int __syncthreads_and(int);
void __syncwarp(unsigned mask = ~0u);
template <class T>
T __shfl_xor_sync(unsigned, T, int, int = 32);
template <class T>
T __shfl_sync(unsigned, T, int, int = 32);
int __any_sync(unsigned, int);
int __all_sync(unsigned, int);
unsigned __ballot_sync(unsigned, int);
template <class T>
T __reduce_max_sync(unsigned, T);
template <class T>
T __ldg(const T*);
unsigned __float_as_uint(float);
int __float_as_int(float);
float __int_as_float(int);
float __uint_as_float(unsigned);
double __longlong_as_double(long long);
long long __double_as_longlong(double);
int __popc(unsigned);
int __ffs(int);
unsigned __umulhi(unsigned, unsigned);
unsigned __byte_perm(unsigned, unsigned, unsigned);
float __fsub_rn(float, float);
double __dsub_rn(double, double);
unsigned long long __cvta_generic_to_shared(const void*);
template <class T>
T atomicAdd(T*, T);
template <class T>
T atomicOr(T*, T);
template <class T>
T atomicMin(T*, T);
float rsqrtf(float);
constexpr int min(int a, int b) { return a < b ? a : b; }
constexpr unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
constexpr long long min(long long a, long long b) { return a < b ? a : b; }
constexpr int max(int a, int b) { return a < b ? b : a; }
constexpr unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
constexpr long long max(long long a, long long b) { return a < b ? b : a; }
