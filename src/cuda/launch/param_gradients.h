#pragma once
// Gradients of parameters, before and after the kernels that sum them: clears the sums, then converts them to the caller's tensors.
#include <vector>

#include "cuda/device/args.cuh"
#include "cuda/jit/kernel_set.h"
#include "cuda/launch/workspace.h"
#include "cuda/tune/read_plan.h"
#include "problem/problem.h"

namespace foveal::cuda {

class ParamGradients {
 public:
  ParamGradients(const problem::Problem& problem, const ReadPlan& plan, Workspace& workspace, jit::KernelSet& kernels);

  bool any() const { return !gradients_.empty(); }
  std::string text() const;  ///< for explain(): `rel diagonal; slope uniform`

  /// For a kernel that writes every element of this parameter's gradient, so that it need not be cleared.
  void leave_uncleared(std::size_t param);

  void prepare(device::AttentionArgs& args, const problem::Buffers& buffers, void* workspace, Stream stream) const;
  void finish(const device::AttentionArgs& args, const problem::Buffers& buffers, Stream stream) const;

 private:
  struct Gradient {
    std::size_t param;
    GradientStorage storage;
    std::int64_t elements = 1;
    std::size_t offset = 0, bytes = 0;  ///< of sums or values in the workspace
    bool direct = false;                ///< values are the caller's tensor
    bool clears = true;                 ///< before anything is added
    jit::KernelHandle convert{};
  };
  void clear(const Gradient& gradient, const problem::Buffers& buffers, Stream stream) const;
  void convert(const Gradient& gradient, const unsigned long long* bins, const void* values, const problem::Buffers& buffers,
               Stream stream) const;

  std::vector<Gradient> gradients_;
  std::string text_;
};

}  // namespace foveal::cuda
