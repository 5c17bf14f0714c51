#include "cuda/cuda_backend.h"

#include <string>
#include <vector>

#include "base/check.h"
#include "cuda/arch.h"
#include "cuda/cuda_memory.h"
#include "cuda/jit/load_together.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/jit/shipped.h"

namespace foveal::cuda {
namespace {

/// Without a compiler: which kernel was not shipped with the library.
std::optional<std::string> not_shipped(const GpuExecutable& executable) {
  for (const jit::KernelSource& source : executable.sources())
    if (!jit::is_shipped(source)) return base::join(source.stem, " did not come with the library, and ", jit::nvrtc_unavailable());
  return std::nullopt;
}

class CudaBackend : public planning::Backend {
 public:
  std::string name() const override { return "cuda"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }

  std::vector<TargetInfo> targets() const override {
    std::vector<TargetInfo> all;
    for (const Target& target : cuda::targets()) {
      TargetInfo info{.backend = "cuda", .target = target.name, .available = false, .detail = {}};
      if (!driver::unavailable().empty()) {
        info.detail = driver::unavailable();
      } else if (!jit::nvrtc_unavailable().empty()) {
        info.detail = jit::nvrtc_unavailable();
        if (jit::shipped_kernels().usable()) info.detail += "; until then only kernels that came with the library run";
      } else {
        for (int device = 0; device < driver::device_count(); ++device) {
          const driver::DeviceFacts& facts = driver::device_facts(device);
          info.available = info.available || target.runs_on(facts.capability());
          info.detail += base::join(info.detail.empty() ? "" : ", ", facts.name, " (", facts.major, ".", facts.minor, ")");
        }
        if (info.detail.empty()) info.detail = "the driver sees no device";
      }
      all.push_back(std::move(info));
    }
    return all;
  }

  planning::Answer prepare(const problem::Problem& problem, const PlanOptions& options) const override {
    for (const problem::TensorSpec* output : {&problem.out, &problem.dq, &problem.dk, &problem.dv})
      if (output->present && output->dtype != problem.dtype && !problem.merges())
        return {.refusal = "out, dq, dk, dv: of another dtype than q"};
    if (!driver::unavailable().empty()) return {.refusal = driver::unavailable()};
    const bool compiles = jit::nvrtc_unavailable().empty();
    if (!compiles && !jit::shipped_kernels().usable()) return {.refusal = jit::nvrtc_unavailable()};
    if (problem.device.index >= driver::device_count()) return {.refusal = base::join("no device cuda:", problem.device.index)};
    const driver::DeviceFacts& facts = driver::device_facts(problem.device.index);
    const driver::BesideCapture beside;
    const Design design = choose(problem, facts, options.target).design;
    if (!design.refusal.empty()) return {.refusal = design.refusal};
    auto executable = design.make();
    executable->set_arch(jit::arch_of(facts.major, facts.minor));
    if (!compiles)
      if (auto reason = not_shipped(*executable)) return {.refusal = *std::move(reason)};
    if (jit::LoadTogether* together = jit::LoadTogether::of_thread()) {
      together->add(executable->take_kernels(), problem.device.index);
    } else {
      executable->load(jit::compile(executable->sources()));
    }
    return {.executable = std::move(executable)};
  }

  planning::DeviceMemory& memory(Device device) const override { return cuda_memory(device.index); }

  void keep_while_captured(Stream stream, const std::shared_ptr<const void>& plan) const override {
    driver::keep_while_captured(driver::handle_of(stream), plan);
  }
};

}  // namespace

std::unique_ptr<planning::Backend> make_cuda_backend() { return std::make_unique<CudaBackend>(); }

}  // namespace foveal::cuda
