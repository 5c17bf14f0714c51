#pragma once
// The floating-point control register of a thread.
#include <cstdint>

namespace foveal::base {

/// plain_floats: to the nearest, no exception traps, denormals as they are. denormals_are_zeros: as operands and as results.
#if defined(__x86_64__)
using FloatMode = unsigned;  // MXCSR
constexpr FloatMode plain_floats = 0x1F80u, denormals_are_zeros = 0x8040u;
inline FloatMode float_mode() { return __builtin_ia32_stmxcsr(); }
inline void set_float_mode(FloatMode mode) { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
using FloatMode = std::uint64_t;  // FPCR
constexpr FloatMode plain_floats = 0, denormals_are_zeros = 1u << 24;
inline FloatMode float_mode() {
  FloatMode mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
inline void set_float_mode(FloatMode mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
#else
using FloatMode = unsigned;
constexpr FloatMode plain_floats = 0, denormals_are_zeros = 0;
inline FloatMode float_mode() { return 0; }
inline void set_float_mode(FloatMode) {}
#endif

/// Sets a mode, and the caller's again at the end: results depend neither on the caller's rounding nor on how many threads inherited it,
/// and a trap that is meant for the caller's own code does not end the process in masked scores of -inf.
class FloatScope {
 public:
  explicit FloatScope(FloatMode mode) : saved_(float_mode()) { set_float_mode(mode); }
  ~FloatScope() { set_float_mode(saved_); }
  FloatScope(const FloatScope&) = delete;
  FloatScope& operator=(const FloatScope&) = delete;

 private:
  FloatMode saved_;
};

}  // namespace foveal::base
