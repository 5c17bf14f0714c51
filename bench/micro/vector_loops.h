#pragma once
// The register loop and the load-heavy loop over any vector: V is a GNU vector type, step(acc, a, b) accumulates, kFlops operations a step.
// Each file that includes this is compiled with its own flags, hence the anonymous namespace.
#include <cstdint>
#include <utility>

namespace foveal::micro {
namespace {

/// Keeps the compiler from folding steps, at no cost.
template <class V>
inline void hold(V& x) {
#ifdef __AVX512F__
  asm volatile("" : "+v"(x));
#else
  asm volatile("" : "+x"(x));
#endif
}

template <int kCount>
using Chains = std::make_integer_sequence<int, kCount>;

/// Twelve or more independent accumulators hide the latency; the operands are small so that nothing overflows or becomes denormal.
template <class V, class Operand, class Step, int... kChain>
double register_loop(std::int64_t count, double flops_per_step, Operand a, Operand b, Step step, std::integer_sequence<int, kChain...>) {
  V acc[sizeof...(kChain)] = {((void)kChain, V{})...};
  for (std::int64_t i = 0; i < count; ++i) (..., (step(acc[kChain], a, b), hold(acc[kChain])));
  (..., hold(acc[kChain]));
  return flops_per_step * sizeof...(kChain) * static_cast<double>(count);
}

/// A register tile of kRows x kVectors: for each of 64 steps kVectors vector loads and kRows broadcasts from 16 KB that stay in L1, then a
/// store of the tile.
template <int kRows, int kVectors, class V, class Broadcast>
double load_loop(std::int64_t count, Broadcast broadcast) {
  constexpr int kSteps = 64, kLanes = sizeof(V) / sizeof(float);
  alignas(64) static thread_local float panel[kSteps * kVectors * kLanes], rows[kRows * kSteps], out[kRows * kVectors * kLanes];
  for (float& x : panel) x = 0.001f;
  for (float& x : rows) x = 0.001f;
  for (std::int64_t i = 0; i < count; ++i) {
    V acc[kRows][kVectors] = {};
    for (int s = 0; s < kSteps; ++s) {
      const V* p = reinterpret_cast<const V*>(panel + s * kVectors * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const V x = broadcast(rows[r * kSteps + s]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] += x * p[v];
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) *reinterpret_cast<V*>(out + (r * kVectors + v) * kLanes) = acc[r][v];
    asm volatile("" ::"r"(out) : "memory");
  }
  return 2.0 * kRows * kVectors * kLanes * kSteps * static_cast<double>(count);
}

}  // namespace
}  // namespace foveal::micro
