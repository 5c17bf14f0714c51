#pragma once
// Accumulated gradients: a backward pass writes to temporary memory, which is then added to the caller's tensors. For C programs whose
// layers share gradients; kernels only overwrite.
#include <cstddef>
#include <memory>
#include <vector>

#include "foveal/attention.h"

namespace foveal::api {

class GradientSum {
 public:
  /// Contiguous tensors like `outputs`, without memory yet, for planning. Throws unsupported where the gradients are not on the CPU.
  explicit GradientSum(const BackwardOutputs& outputs);
  const BackwardOutputs& parts() const { return parts_; }

  /// Memory for the parts. Throws invalid_argument where the outputs overlap other tensors or are not aligned.
  void allocate(const BackwardInputs& inputs);
  void add(int threads) const;  ///< outputs += parts

 private:
  BackwardOutputs outputs_, parts_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace foveal::api
