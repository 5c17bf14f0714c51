#pragma once
// The state of a thread during a task: its floating-point control register, and what a table of operations needs.
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

/// The thread state during a task: denormals are zeros, because an operation that makes one costs a hundred cycles and none is needed; and
/// enter and leave of the table.
class TaskMode {
 public:
  TaskMode(void (*enter)(), void (*leave)()) : saved_(float_mode()), leave_(leave) {
    set_float_mode(saved_ | denormals_are_zeros);
    if (enter) enter();
  }
  ~TaskMode() {
    if (leave_) leave_();
    set_float_mode(saved_);
  }
  TaskMode(const TaskMode&) = delete;
  TaskMode& operator=(const TaskMode&) = delete;

 private:
  FloatMode saved_;
  void (*leave_)();
};

}  // namespace foveal::cpu
