#pragma once
// Launch of kernels/collect_sm90.cuh: gradients of parameters after a Hopper backward pass that has no registers for terms of pairs.
#include <memory>
#include <vector>

#include "cuda/jit/kernel_set.h"
#include "cuda/launch/sm90_args.h"
#include "cuda/tune/sm90_order.h"

namespace foveal::cuda {

class CollectSm90 {
 public:
  CollectSm90(const problem::Problem& problem, const Sm90CollectConfig& config, const driver::DeviceFacts& facts, jit::KernelSet& kernels);

  /// args: of the backward pass, whose tiles are as large.
  void run(const problem::Buffers& buffers, const device::Sm90Args& args, Stream stream) const;
  void describe(Explanation& explanation) const;

 private:
  Sm90CollectConfig config_;
  std::int64_t keys_in_reach_ = 0;
  Sm90Schedule schedule_{};
  unsigned shared_bytes_ = 0;
  jit::KernelHandle kernel_;
};

jit::KernelSource collect_sm90_source(const problem::Problem& problem, const Sm90CollectConfig& config);

}  // namespace foveal::cuda
