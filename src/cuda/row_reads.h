#pragma once
// Trained reads of a table for each query, `t[..., q_idx, f(kv_idx)]`: those of a row of tiles touch elements that no other row does, so that a kernel which
// owns queries sums them in shared memory (device/kernels/rows_sm90.cuh).
#include <optional>
#include <vector>

#include "cuda/device/layout/sm90.cuh"
#include "problem/problem.h"

namespace foveal::cuda {

struct RowRead {
  int read;       ///< number in the score program
  int entries;    ///< elements that pairs of one query can touch
  int run;        ///< ColumnForm::run of the element
  bool repeats;   ///< ColumnForm::repeats
  bool distinct;  ///< ColumnForm::distinct
  bool stored;    ///< nobody else touches a query's elements: they are written, not added
  unsigned dims;  ///< dimensions whose index depends on kv, a bit each

  /// Reads accumulated in registers, of runs and of what repeats, are flushed rarely.
  device::RowBins bins() const { return run > 0 || distinct || repeats ? device::RowBins::distinct : device::RowBins::any; }
};

constexpr int max_row_reads = 4;
/// A read of the score as one of a table for each query, if it is one: some index depends on q alone, some on kv, and none on the score.
std::optional<RowRead> row_read(const problem::Problem& problem, int read);

}  // namespace foveal::cuda
