#pragma once
// fp32 sums of dk and dv for backward kernels in which several tasks share the query heads of a kv head and add to its gradients. The sums
// lie in the workspace; they are cleared before the backward kernel and converted to the caller's tensors after it.
#include <vector>

#include "cuda/device/args.cuh"
#include "cuda/jit/kernel_set.h"
#include "cuda/launch/workspace.h"
#include "cuda/tune/sm90.h"
#include "problem/problem.h"

namespace foveal::cuda {

class GroupSums {
 public:
  /// Empty, without workspace or kernels, where one task has all query heads of a group.
  GroupSums(const problem::Problem& problem, const Sm90BackwardConfig& config, Workspace& workspace, jit::KernelSet& kernels);

  /// Clears the sums and sets them as the dk and dv that the backward kernel adds to.
  void begin(device::AttentionArgs& args, void* workspace, Stream stream) const;
  /// args: with the caller's tensors.
  void finish(const device::AttentionArgs& args, void* workspace, Stream stream) const;

 private:
  struct Sum {
    device::Tensor device::AttentionArgs::*gradient;
    std::int64_t of_head;  ///< floats
    std::size_t offset, bytes;
    jit::KernelHandle kernel;
  };
  device::Tensor tensor(const Sum& sum, void* workspace) const;

  bool packed_;
  std::int64_t batch_, heads_, longest_;
  std::vector<Sum> sums_;
};

}  // namespace foveal::cuda
