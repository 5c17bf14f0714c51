#pragma once
// The state of a thread during a task: its floating-point mode, and what a table of operations needs.
#include "base/float_mode.h"

namespace foveal::cpu {

/// Denormals are zeros, because an operation that makes one costs a hundred cycles and none is needed; and enter and leave of the table.
class TaskMode {
 public:
  TaskMode(void (*enter)(), void (*leave)()) : leave_(leave) {
    if (enter) enter();
  }
  ~TaskMode() {
    if (leave_) leave_();
  }
  TaskMode(const TaskMode&) = delete;
  TaskMode& operator=(const TaskMode&) = delete;

 private:
  base::FloatScope floats_{base::plain_floats | base::denormals_are_zeros};
  void (*leave_)();
};

}  // namespace foveal::cpu
