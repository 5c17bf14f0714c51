#pragma once
// Which tiles each row of tiles visits: classified on the host while planning, or by a kernel in each run when the mask reads data.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda/device/args.cuh"
#include "cuda/jit/kernel.h"
#include "cuda/launch/workspace.h"
#include "problem/problem.h"

namespace foveal::cuda {

class TileTables {
 public:
  /// Why there can be no table for tiles of this size, or nothing.
  static std::optional<std::string> refuses(const problem::Problem& problem, int block_q, int block_kv);

  /// transposed: rows are kv tiles. Reserves workspace for tables that are made in each run.
  TileTables(const problem::Problem& problem, int block_q, int block_kv, bool transposed, Workspace& workspace);

  bool needs_data() const { return !sources_.empty(); }
  /// The kernels that make the tables when the mask reads data: one classifies tiles, the other lists the runs.
  const std::vector<jit::KernelSource>& sources() const { return sources_; }
  void load(const std::shared_ptr<const jit::Image>* images, int device);  ///< one for each source
  void upload(int device);                                                 ///< host tables

  /// Sets the tiles and tables of the arguments, and makes the tables that need data.
  void place(device::AttentionArgs& args, void* workspace, Stream stream) const;
  device::TileRuns runs(void* workspace) const;
  /// Launches these kernels; args hold runs() already.
  void make(const device::AttentionArgs& args, void* workspace, Stream stream) const;

  /// Sets the explanation's tiles and nominal operations.
  /// Tiles and nominal operations; describe() also says where the table is made.
  void describe_work(Explanation& explanation, const problem::Problem& problem) const;
  void describe(Explanation& explanation, const problem::Problem& problem) const;

  std::int64_t full = 0, partial = 0, empty = 0;  ///< tiles of all heads, when known

 private:
  /// Classifies what tiles it can without the mask's data.
  void classify_known(const problem::Problem& problem, int block_q, int block_kv);

  bool transposed_ = false;
  bool all_full_ = false;
  std::int64_t rows_ = 0, capacity_ = 0;
  int mask_batches_ = 1, mask_heads_ = 1;
  long long batch_stride_ = 0, head_stride_ = 0;
  std::vector<device::TileRun> host_runs_;
  std::vector<int> host_begin_;
  driver::Memory device_runs_, device_begin_, device_known_;
  std::vector<unsigned char> known_;
  std::size_t classes_offset_ = 0, runs_offset_ = 0, begin_offset_ = 0, end_offset_ = 0;
  std::vector<jit::KernelSource> sources_;
  jit::Kernel classify_, list_runs_;
};

}  // namespace foveal::cuda
