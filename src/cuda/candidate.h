#pragma once
// A family of kernels that the CUDA backend may use for a problem. The first candidate that does not refuse makes the executable.
#include <memory>
#include <optional>
#include <string>

#include "cuda/jit/compile.h"
#include "cuda/jit/driver.h"
#include "plan/backend.h"

namespace foveal::cuda {

/// The constructor plans everything, without a device; load() must come before run().
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
  bool reads_pages = false;  ///< follows a block table; for others keys are gathered first
  bool reads_bytes = false;  ///< takes integers that index small tables as bytes (launch/narrow_indices.h)
};

}  // namespace foveal::cuda
