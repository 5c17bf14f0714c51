#pragma once
// One family of kernels that the CUDA backend may use for a problem. Candidates are asked in order; the first that does not refuse
// prepares.
#include <memory>
#include <optional>
#include <string>

#include "cuda/jit/compile.h"
#include "cuda/jit/driver.h"
#include "plan/backend.h"

namespace foveal::cuda {

/// Decides everything when it is made, which needs no device; runs after load().
class GpuExecutable : public planning::Executable {
 public:
  const std::vector<jit::KernelSource>& sources() const { return sources_; }
  void set_arch(const std::string& arch) {
    for (jit::KernelSource& source : sources_) source.arch = arch;
  }
  /// One image for each source, in their order.
  virtual void load(const std::vector<std::shared_ptr<const jit::Image>>& images) = 0;

 protected:
  std::vector<jit::KernelSource> sources_;  ///< without an arch until set_arch()
};

/// A kernel that has configurations to choose from, and all that are legal for a problem, as text (tune/tuned.h).
struct Family {
  std::string name;
  std::vector<std::string> configs;
};

struct Candidate {
  const char* target;  ///< "sm90", "sm80": PlanOptions::target
  Pass pass;
  std::optional<std::string> (*refuses)(const problem::Problem& problem, const driver::DeviceFacts& facts);
  std::unique_ptr<GpuExecutable> (*make)(const problem::Problem& problem, const driver::DeviceFacts& facts);
  std::vector<Family> (*families)(const problem::Problem& problem, const driver::DeviceFacts& facts);
  bool reads_pages = false;  ///< where a block table says; others see problems whose keys are gathered
  bool reads_bytes = false;  ///< integers that choose elements of small tables come as bytes (launch/narrow_indices.h)
};

}  // namespace foveal::cuda
