#pragma once
// A problem line on a GPU: its tensors, its plan and a workspace.
#include <algorithm>
#include <string>

#include "check/device_case.h"
#include "cuda/cuda_memory.h"
#include "foveal/foveal.h"
#include "problem/case_data.h"
#include "problem/line.h"

namespace foveal::test {

inline problem::Line on_gpu(problem::Line line, int ordinal = 0) {
  line.device = {DeviceKind::cuda, ordinal};
  line.options.backend = "cuda";
  return line;
}

struct OnGpu {
  explicit OnGpu(const problem::Line& line)
      : data(line),
        device(data),
        memory(cuda::cuda_memory(line.device.index)),
        plan(problem::plan_of(data.line(), device)),
        workspace(line.device, std::max<std::size_t>(plan.workspace_bytes(), 1)) {}
  explicit OnGpu(const std::string& text, int ordinal = 0) : OnGpu(on_gpu(problem::parse_line(text), ordinal)) {}

  bool is_forward() const { return data.line().pass == Pass::forward; }
  void run(Stream stream = {}) const {
    problem::with_arguments(data.line(), device,
                            [&](const auto& inputs, const auto& outputs) { plan.run(inputs, outputs, workspace.data(), stream); });
  }
  /// The out and lse that a backward pass is given.
  void run_forward() const {
    foveal::forward(data.line().attention, device.forward_inputs(), device.forward_outputs(), {}, data.line().options);
  }
  /// All bytes of all tensors.
  std::string bytes() {
    device.download();
    std::string all;
    for (const auto& [name, block] : data.blocks()) all.append(reinterpret_cast<const char*>(block.bytes.get()), block.size);
    return all;
  }

  problem::CaseData data;
  check::DeviceCase device;
  planning::DeviceMemory& memory;
  Plan plan;
  check::DeviceBytes workspace;
};

}  // namespace foveal::test
