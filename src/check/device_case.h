#pragma once
// A case copied to the device of its line, byte for byte. On the CPU, the case itself.
#include <vector>

#include "plan/device_memory.h"
#include "problem/case_data.h"

namespace foveal::check {

/// Memory of a device (host memory for the CPU).
class DeviceBytes {
 public:
  explicit DeviceBytes(Device device, std::size_t bytes = 0);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  void* data() const { return data_; }
  void synchronize() { memory_->synchronize({}); }

 private:
  planning::DeviceMemory* memory_;
  void* data_ = nullptr;
};

class DeviceCase {
 public:
  /// Copies the case to the device; throws unsupported when no backend serves it.
  explicit DeviceCase(problem::CaseData& data);
  ~DeviceCase();
  DeviceCase(const DeviceCase&) = delete;
  DeviceCase& operator=(const DeviceCase&) = delete;

  ForwardInputs forward_inputs() const;
  ForwardOutputs forward_outputs() const;
  BackwardInputs backward_inputs() const;
  BackwardOutputs backward_outputs() const;

  void upload();
  /// Waits for the device, then copies everything back into the case.
  void download();

 private:
  TensorView moved(TensorView view) const;

  problem::CaseData& data_;
  planning::DeviceMemory* memory_ = nullptr;  ///< null: nothing is copied
  std::vector<void*> blocks_;                 ///< like the case's
};

}  // namespace foveal::check
