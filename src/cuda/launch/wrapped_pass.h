#pragma once
// A pass around another one, with kernels of its own before or after it. The inner pass's workspace and kernels come first.
#include <memory>
#include <string>

#include "cuda/candidate.h"
#include "cuda/launch/workspace.h"

namespace foveal::cuda {

class WrappedPass : public GpuExecutable {
 public:
  WrappedPass(const problem::Problem& problem, std::unique_ptr<GpuExecutable> pass)
      : GpuExecutable(problem.device.index), p_(problem), pass_(std::move(pass)) {
    workspace_.reserve(pass_->workspace_bytes());
    kernels_ = pass_->take_kernels();
  }
  std::size_t workspace_bytes() const override { return workspace_.bytes(); }
  std::string kernel() const override { return pass_->kernel(); }

 protected:
  problem::Problem p_;
  std::unique_ptr<GpuExecutable> pass_;
  Workspace workspace_;
};

}  // namespace foveal::cuda
