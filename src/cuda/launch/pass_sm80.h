#pragma once
// One kernel of the portable path with its tiles and its tables of tiles, and the passes that collect gradients of parameters.
#include <optional>
#include <vector>

#include "cuda/launch/tile_tables.h"
#include "cuda/tune/read_plan.h"
#include "cuda/tune/sm80.h"
#include "foveal/attention.h"

namespace foveal::cuda {

class PassSm80 {
 public:
  PassSm80(const problem::Problem& problem, Sm80Kernel kind, const Chosen<Sm80Config>& choice, jit::KernelSource source,
           Workspace& workspace, jit::KernelSet& kernels);

  unsigned shared_bytes() const { return shared_bytes_; }

  void place(device::AttentionArgs& args, void* workspace, Stream stream) const { tables_.place(args, workspace, stream); }
  void launch(const device::AttentionArgs& args, std::int64_t ctas, Stream stream) const;

  const Chosen<Sm80Config>& choice() const { return choice_; }
  /// Adds its tiles and operations; matmuls over head_dim and over head_dim_v per tile.
  void describe_tiles(Explanation& explanation, const problem::Problem& problem, int matmuls, int matmuls_v) const;
  /// The same, and under `name` what the compiler made of it and why it has this configuration.
  void describe(Explanation& explanation, const char* name, const problem::Problem& problem, int matmuls, int matmuls_v) const;
  const jit::Facts& facts() const { return kernel_->image().facts; }

 private:
  Chosen<Sm80Config> choice_;
  TileTables tables_;
  unsigned shared_bytes_;
  jit::KernelHandle kernel_;
};

/// Measures far rows (device/score/far_row.cuh). Runs after the kernel that writes lse2 and largest, whose values for far rows it replaces,
/// and before the kernels that read them.
class MeasureSm80 {
 public:
  MeasureSm80(const problem::Problem& problem, std::size_t shared_bytes_per_block, jit::KernelSet& kernels);

  /// args: with lse2, largest and delta. Adds the terms of far rows to the gradient of the sink.
  void run(const problem::Problem& problem, device::AttentionArgs args, Stream stream) const;

 private:
  Sm80Config config_;
  unsigned shared_bytes_;
  jit::KernelHandle kernel_;
};

/// The portable passes of a read plan, which follow the backward kernels of any target: the dq kernel without its dq (Collector::walk), and
/// a kernel that owns tiles of pairs (Collector::any_pairs). They read q, k, v, dout, lse2, largest and delta.
class ReadPasses {
 public:
  ReadPasses(const problem::Problem& problem, std::size_t shared_bytes_per_block, const ReadPlan& plan, Workspace& workspace,
             jit::KernelSet& kernels);

  /// Why a plan's portable passes cannot run, or nothing.
  static std::optional<std::string> refuses(const problem::Problem& problem, std::size_t shared_bytes_per_block, const ReadPlan& plan);

  bool any() const { return queries_ || !pairs_.empty(); }
  void run(const problem::Problem& problem, device::AttentionArgs args, void* workspace, Stream stream) const;
  void describe(Explanation& explanation, const problem::Problem& problem) const;

 private:
  struct Pairs {
    PassSm80 pass;
    std::int64_t owners;  ///< batches and heads that the parameter tells apart
  };
  std::optional<PassSm80> queries_;
  std::vector<Pairs> pairs_;
};

}  // namespace foveal::cuda
