#pragma once
// A pass with kernels of its own before or after another pass, whose workspace and sources come first.
#include <memory>
#include <string>
#include <vector>

#include "cuda/candidate.h"
#include "cuda/jit/kernel.h"
#include "cuda/launch/workspace.h"

namespace foveal::cuda {

class WrappedPass : public GpuExecutable {
 public:
  WrappedPass(const problem::Problem& problem, std::unique_ptr<GpuExecutable> pass) : p_(problem), pass_(std::move(pass)) {
    workspace_.reserve(pass_->workspace_bytes());
    sources_ = pass_->sources();
  }
  void load(const std::vector<std::shared_ptr<const jit::Image>>& images) override {
    const auto own = images.begin() + static_cast<std::ptrdiff_t>(pass_->sources().size());
    pass_->load({images.begin(), own});
    for (auto image = own; image != images.end(); ++image) kernels_.emplace_back(*image, p_.device.index, 0);
  }
  std::size_t workspace_bytes() const override { return workspace_.bytes(); }
  std::string kernel() const override { return pass_->kernel(); }

 protected:
  problem::Problem p_;
  std::unique_ptr<GpuExecutable> pass_;
  Workspace workspace_;
  std::vector<jit::Kernel> kernels_;  ///< of the sources after the pass's
};

}  // namespace foveal::cuda
