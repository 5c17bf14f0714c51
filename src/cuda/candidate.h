#pragma once
// Families of kernels that the CUDA backend may use for a problem, and the choice among them: the first candidate that does not refuse
// makes the executable.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/jit/driver.h"
#include "cuda/jit/kernel_set.h"
#include "plan/backend.h"

namespace foveal::cuda {

/// The constructor plans everything, without a device, and adds its kernels to kernels_; load() must come before run().
class GpuExecutable : public planning::Executable {
 public:
  explicit GpuExecutable(int device) : device_(device) {}
  const std::vector<jit::KernelSource>& sources() const { return kernels_.sources(); }
  void set_arch(const std::string& arch) { kernels_.set_arch(arch); }
  /// One image for each source, in their order.
  void load(const std::vector<std::shared_ptr<const jit::Image>>& images) { kernels_.load(images, device_); }
  /// For a pass around this one, which loads these kernels with its own.
  jit::KernelSet take_kernels() { return std::move(kernels_); }

 protected:
  int device_;
  jit::KernelSet kernels_;
};

/// A kernel with a choice of configurations, and the text (tune/tuned.h) of all that are legal for a problem.
struct Family {
  std::string name;
  std::vector<std::string> configs;
};

/// All decisions about the kernels of a problem, or why it cannot be run.
struct Design {
  std::string refusal{};                                   ///< empty if the problem can be run
  std::function<std::unique_ptr<GpuExecutable>()> make{};  ///< what was decided, as an executable

  static Design refused(std::string reason) { return {.refusal = std::move(reason)}; }
};

struct Candidate {
  Pass pass;
  Design (*design)(const problem::Problem& problem, const driver::DeviceFacts& facts);
  std::vector<Family> (*families)(const problem::Problem& problem, const driver::DeviceFacts& facts);
  bool reads_pages = false;  ///< reads keys through a block table; for other candidates keys are gathered first
  bool reads_bytes = false;  ///< takes integers that index small tables as bytes (launch/narrow_indices.h)
};

/// The candidate for a problem and its design, or why there is none.
struct Choice {
  const Candidate* candidate = nullptr;
  Design design{};  ///< its refusal names all targets
};

/// The design includes the passes that the problem needs around the candidate's: keys are gathered from pages, integers converted to bytes,
/// reads checked. target: the name of one (arch.h), or "" for the first that can run the problem.
Choice choose(const problem::Problem& problem, const driver::DeviceFacts& facts, const std::string& target);

/// Are keys on pages gathered for this candidate? With checked reads they always are: the kernel that checks cannot read a block table.
bool gathers(const problem::Problem& problem, const Candidate& candidate);

}  // namespace foveal::cuda
