#pragma once
// The floating-point control register of a thread.
#include <cstdint>

namespace foveal::cpu {

#if defined(__x86_64__)
using FloatMode = unsigned;
constexpr FloatMode denormals_are_zeros = 0x8040u;  ///< MXCSR: FTZ and DAZ
inline FloatMode float_mode() { return __builtin_ia32_stmxcsr(); }
inline void set_float_mode(FloatMode mode) { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
using FloatMode = std::uint64_t;
constexpr FloatMode denormals_are_zeros = 1u << 24;  ///< FPCR.FZ is both
inline FloatMode float_mode() {
  FloatMode mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
inline void set_float_mode(FloatMode mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
#else
using FloatMode = unsigned;
constexpr FloatMode denormals_are_zeros = 0;
inline FloatMode float_mode() { return 0; }
inline void set_float_mode(FloatMode) {}
#endif

}  // namespace foveal::cpu
