#pragma once
// Which tiles each row of tiles visits: classified on the host while planning, or by a kernel in each run when the mask reads data.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda/device/args.cuh"
#include "cuda/jit/kernel_set.h"
#include "cuda/launch/workspace.h"
#include "problem/problem.h"

namespace foveal::cuda {

class TileTables {
 public:
  /// Why there can be no table for tiles of this size, or nothing.
  static std::optional<std::string> refuses(const problem::Problem& problem, int block_q, int block_kv);

  /// transposed: rows are kv tiles. Reserves workspace for tables that are made in each run.
  TileTables(const problem::Problem& problem, int block_q, int block_kv, bool transposed, Workspace& workspace);

  bool needs_data() const { return needs_data_; }
  /// For kernels that read the tables. The set gets the tables or, when the mask reads data, the kernels that make them: one classifies
  /// tiles, the other lists the runs.
  void add_to(jit::KernelSet& kernels);

  /// Sets the tiles and tables of the arguments, and makes the tables that need data.
  void place(device::AttentionArgs& args, void* workspace, Stream stream) const;
  device::TileRuns runs(void* workspace) const;
  /// Launches the kernels that make the tables; args already hold runs().
  void make(const device::AttentionArgs& args, void* workspace, Stream stream) const;

  /// Sets the explanation's numbers of tiles and nominal operations.
  void describe_work(Explanation& explanation, const problem::Problem& problem) const;
  /// The same, and where the table is made.
  void describe(Explanation& explanation, const problem::Problem& problem) const;

  std::int64_t full = 0, partial = 0, empty = 0;  ///< tiles of all heads, when known

 private:
  /// Classifies the tiles that can be classified without the mask's data.
  void classify_known(const problem::Problem& problem, int block_q, int block_kv);

  bool transposed_ = false;
  bool all_full_ = false, needs_data_ = false;
  std::int64_t rows_ = 0, capacity_ = 0;
  int mask_batches_ = 1, mask_heads_ = 1;
  long long batch_stride_ = 0, head_stride_ = 0;
  // Until they are added to a set:
  std::vector<device::TileRun> host_runs_{};
  std::vector<int> host_begin_{};
  std::vector<unsigned char> host_known_{};
  jit::KernelSource classify_source_{};
  // From then on:
  jit::TableHandle runs_, begin_, known_;
  jit::KernelHandle classify_, list_runs_;
  std::size_t classes_offset_ = 0, runs_offset_ = 0, begin_offset_ = 0, end_offset_ = 0;
};

}  // namespace foveal::cuda
