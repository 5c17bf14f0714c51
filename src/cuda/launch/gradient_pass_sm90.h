#pragma once
// Passes that sum gradients of parameters after the main kernel of a Hopper backward pass. Each recomputes scores in a kernel of its own;
// tables, tensor maps and launches are alike.
#include <optional>
#include <vector>

#include "cuda/jit/kernel_set.h"
#include "cuda/launch/sm90_args.h"
#include "cuda/launch/tile_tables.h"
#include "cuda/tune/read_plan.h"
#include "cuda/tune/sm90_order.h"

namespace foveal::cuda {

/// What tells these passes apart.
struct GradientKernelSm90 {
  const char* name;  ///< for explain()
  jit::KernelSource source;
  int block_q, block_kv, stages, threads;
  std::size_t shared_bytes;
  Sm90Walk walk;  ///< keys: it owns rows of queries; queries: it walks the tiles of the backward kernel
  Sm90Schedule schedule;
  std::optional<device::Divisor> row_parts{};  ///< tasks of a row of tiles, where rows are split
  std::vector<PairTile> tiles{};               ///< reads that come as tiles
  int pair_stages = 0;                         ///< of these
};

/// kernels/pairs_sm90.cuh: the gradient of one parameter that has an element for each pair.
GradientKernelSm90 pairs_sm90(const HopperProblem& problem, const PlannedRead& read, const Sm90PairsConfig& config,
                              const driver::DeviceFacts& facts);
/// kernels/rows_sm90.cuh: gradients of parameters that have a table for each query.
GradientKernelSm90 query_tables_sm90(const HopperProblem& problem, const Sm90RowsConfig& config, const driver::DeviceFacts& facts);
/// kernels/collect_sm90.cuh: the gradients that backward_wide_sm90, which has no registers for terms of pairs, leaves over.
GradientKernelSm90 collect_sm90(const HopperProblem& problem, const Sm90CollectConfig& config, const driver::DeviceFacts& facts);

/// covers: the kernel writes every element of the parameter's gradient.
jit::KernelSource pairs_sm90_source(const HopperProblem& problem, const Sm90PairsConfig& config, int read, bool covers);
jit::KernelSource collect_sm90_source(const HopperProblem& problem, const Sm90CollectConfig& config);

class GradientPassSm90 {
 public:
  GradientPassSm90(const HopperProblem& problem, GradientKernelSm90 kernel, Workspace& workspace, jit::KernelSet& kernels);

  /// args: of the backward pass, with its statistics, mask and gradients.
  void run(const problem::Buffers& buffers, const device::Sm90Args& args, void* workspace, Stream stream) const;
  void describe(Explanation& explanation) const;

 private:
  GradientKernelSm90 design_;  ///< without its source
  std::int64_t queries_, keys_in_reach_;
  std::optional<TileTables> tables_;
  jit::KernelHandle kernel_;
};

}  // namespace foveal::cuda
