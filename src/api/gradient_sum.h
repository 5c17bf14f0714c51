#pragma once
// Gradients that are added to what the caller has: a backward pass writes to memory of our own, which is then added. For C programs whose
// layers share gradients; the kernels themselves only overwrite.
#include <cstddef>
#include <memory>
#include <vector>

#include "foveal/attention.h"

namespace foveal::api {

class GradientSum {
 public:
  /// Contiguous tensors like `outputs`, without memory yet: what to plan with. Throws unsupported where the gradients are not on the CPU.
  explicit GradientSum(const BackwardOutputs& outputs);
  const BackwardOutputs& parts() const { return parts_; }

  /// Memory for the parts. Throws invalid_argument where the outputs are not what a call without parts is given: apart from all other tensors, and aligned.
  void allocate(const BackwardInputs& inputs);
  void add(int threads) const;  ///< outputs += parts

 private:
  BackwardOutputs outputs_, parts_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace foveal::api
