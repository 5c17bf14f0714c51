#pragma once
// Launch of kernels/pairs_sm90.cuh: the gradient of one parameter that has an element for each pair, after a Hopper backward pass.
#include <memory>
#include <optional>
#include <vector>

#include "cuda/launch/sm90_args.h"
#include "cuda/launch/tile_tables.h"
#include "cuda/tune/read_plan.h"
#include "cuda/tune/sm90_order.h"

namespace foveal::cuda {

class PairsSm90 {
 public:
  PairsSm90(const problem::Problem& problem, const PlannedRead& read, const Sm90PairsConfig& config, const driver::DeviceFacts& facts,
            Workspace& workspace, jit::KernelSet& kernels);

  int param() const { return param_; }
  bool covers() const { return covers_; }  ///< writes every element of the parameter's gradient

  /// args: statistics, mask and gradients of the backward pass.
  void run(const problem::Buffers& buffers, const device::Sm90Args& args, void* workspace, Stream stream) const;
  void describe(Explanation& explanation) const;

 private:
  const problem::Problem& problem_;
  Sm90PairsConfig config_;
  std::int64_t keys_in_reach_ = 0;
  int param_;
  bool covers_;
  std::optional<TileTables> tables_;
  Sm90Schedule schedule_{};
  device::Divisor row_parts_{};  ///< tasks of a row of tiles
  unsigned shared_bytes_ = 0;
  jit::KernelHandle kernel_;
};

/// covers: see PairsSm90::covers().
jit::KernelSource pairs_sm90_source(const problem::Problem& problem, const Sm90PairsConfig& config, int read, bool covers);

}  // namespace foveal::cuda
