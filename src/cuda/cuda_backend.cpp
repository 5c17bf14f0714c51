#include "cuda/cuda_backend.h"

#include "base/check.h"
#include "cuda/candidate.h"
#include "cuda/cuda_memory.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/launch/backward_sm80.h"
#include "cuda/launch/backward_sm90.h"
#include "cuda/launch/forward_sm80.h"
#include "cuda/launch/forward_sm90.h"

namespace foveal::cuda {
namespace {

/// In the order in which they are asked.
const Candidate* const candidates[] = {&forward_sm90, &backward_sm90, &forward_sm80, &backward_sm80};

/// The candidate for a problem, or why none will do.
struct Choice {
  const Candidate* candidate = nullptr;
  std::string refusals;
};

Choice choose(const problem::Problem& problem, const PlanOptions& options) {
  Choice choice;
  const driver::DeviceFacts& facts = driver::device_facts(problem.device.index);
  for (const Candidate* candidate : candidates) {
    if (candidate->pass != problem.pass || (!options.target.empty() && options.target != candidate->target)) continue;
    const auto reason = candidate->refuses(problem, facts);
    if (!reason) {
      choice.candidate = candidate;
      return choice;
    }
    choice.refusals += base::join(choice.refusals.empty() ? "" : "; ", candidate->target, ": ", *reason);
  }
  if (choice.refusals.empty()) choice.refusals = base::join("no target ", options.target, "; expected sm80 or sm90");
  return choice;
}

class CudaBackend : public planning::Backend {
 public:
  std::string name() const override { return "cuda"; }
  DeviceKind device_kind() const override { return DeviceKind::cuda; }

  std::vector<TargetInfo> targets() const override {
    std::vector<TargetInfo> all;
    for (const auto& [target, capability] : {std::pair{"sm90", 90}, std::pair{"sm80", 80}}) {
      TargetInfo info{.backend = "cuda", .target = target, .available = false, .detail = {}};
      if (!driver::unavailable().empty()) {
        info.detail = driver::unavailable();
      } else if (!jit::nvrtc_unavailable().empty()) {
        info.detail = jit::nvrtc_unavailable();
      } else {
        for (int device = 0; device < driver::device_count(); ++device) {
          const driver::DeviceFacts& facts = driver::device_facts(device);
          const bool can = capability == 90 ? facts.capability() == 90 : facts.capability() >= capability;
          info.available = info.available || can;
          info.detail += base::join(info.detail.empty() ? "" : ", ", facts.name, " (", facts.major, ".", facts.minor, ")");
        }
        if (info.detail.empty()) info.detail = "the driver sees no device";
      }
      all.push_back(std::move(info));
    }
    return all;
  }

  std::optional<std::string> refuses(const problem::Problem& problem, const PlanOptions& options) const override {
    if (!driver::unavailable().empty()) return driver::unavailable();
    if (!jit::nvrtc_unavailable().empty()) return jit::nvrtc_unavailable();
    if (problem.device.index >= driver::device_count()) return base::join("no device cuda:", problem.device.index);
    Choice choice = choose(problem, options);
    if (choice.candidate) return std::nullopt;
    return std::move(choice.refusals);
  }

  std::unique_ptr<planning::Executable> prepare(const problem::Problem& problem, const PlanOptions& options) const override {
    return choose(problem, options).candidate->prepare(problem, driver::device_facts(problem.device.index));
  }

  planning::DeviceMemory& memory(Device device) const override { return cuda_memory(device.index); }
};

}  // namespace

std::unique_ptr<planning::Backend> make_cuda_backend() { return std::make_unique<CudaBackend>(); }

}  // namespace foveal::cuda
