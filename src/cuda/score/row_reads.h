#pragma once
// Trained reads of a table per query, `t[..., q_idx, f(kv_idx)]`: rows of tiles touch disjoint elements, so that a kernel that owns queries
// can sum them in shared memory (device/kernels/rows_sm90.cuh).
#include <optional>

#include "cuda/device/layout/sm90.cuh"
#include "problem/problem.h"

namespace foveal::cuda {

struct RowRead {
  int read;       ///< number in the score program
  int entries;    ///< elements that pairs of one query can touch
  int run;        ///< ColumnForm::run of the element
  bool repeats;   ///< ColumnForm::repeats
  bool distinct;  ///< ColumnForm::distinct
  bool stored;    ///< a query's elements have one owner, which writes them; otherwise they are added
  unsigned dims;  ///< dimensions whose index depends on kv, a bit each

  /// Runs and repeating elements are accumulated in registers, which are flushed rarely.
  device::RowBins bins() const { return run > 0 || distinct || repeats ? device::RowBins::distinct : device::RowBins::any; }
};

constexpr int max_row_reads = 4;
/// Such a read: some index depends on q alone, some on kv, and none on the score. Nothing for others.
std::optional<RowRead> row_read(const problem::Problem& problem, int read);

}  // namespace foveal::cuda
