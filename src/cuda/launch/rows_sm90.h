#pragma once
// Launch of kernels/rows_sm90.cuh: gradients of parameters with a table for each query, after a Hopper backward pass.
#include <memory>
#include <optional>
#include <vector>

#include "cuda/launch/sm90_args.h"
#include "cuda/launch/tile_tables.h"
#include "cuda/tune/read_plan.h"
#include "cuda/tune/sm90_order.h"

namespace foveal::cuda {

class RowsSm90 {
 public:
  RowsSm90(const problem::Problem& problem, const Sm90RowsConfig& config, const driver::DeviceFacts& facts, Workspace& workspace,
           jit::KernelSet& kernels);

  /// args: statistics, mask and gradients of the backward pass.
  void run(const problem::Buffers& buffers, const device::Sm90Args& args, void* workspace, Stream stream) const;
  void describe(Explanation& explanation) const;

 private:
  const problem::Problem& problem_;
  Sm90RowsConfig config_;
  std::int64_t keys_in_reach_ = 0;
  std::optional<TileTables> tables_;
  Sm90Schedule schedule_{};
  unsigned shared_bytes_ = 0;
  jit::KernelHandle kernel_;
};

jit::KernelSource rows_sm90_source(const problem::Problem& problem, const Sm90RowsConfig& config);

}  // namespace foveal::cuda
