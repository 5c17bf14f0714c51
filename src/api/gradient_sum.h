#pragma once
// Accumulated gradients: a backward pass writes to temporary memory, which is then added to the caller's tensors. For C programs whose
// layers share gradients; kernels only overwrite.
#include <cstddef>
#include <memory>
#include <vector>

#include "foveal/attention.h"
#include "plan/workspace_pool.h"

namespace foveal::api {

class GradientSum {
 public:
  /// Contiguous tensors like `outputs`, without memory yet, for planning.
  explicit GradientSum(const BackwardOutputs& outputs);
  const BackwardOutputs& parts() const { return parts_; }

  /// Memory for the parts; on a GPU of the pool of this thread and stream. Throws invalid_argument where the outputs overlap other tensors
  /// or are not aligned, and unsupported where the stream is being captured into a graph, which would outlive the memory.
  void allocate(const BackwardInputs& inputs, Stream stream);
  /// outputs += parts: by so many threads (0: all), or by kernels on the stream.
  void add(int threads, Stream stream) const;

 private:
  BackwardOutputs outputs_, parts_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::unique_ptr<planning::PooledWorkspace>> device_memory_;
};

}  // namespace foveal::api
