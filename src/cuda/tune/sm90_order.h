#pragma once
// The order in which CTAs of the sm_90 kernels do their tasks, and how rows of tiles are split into them: pure functions, which play an
// order through.
#include <vector>

#include "cuda/tune/sm90.h"

namespace foveal::cuda {

/// An order of tasks, and how long they take in it.
struct Sm90Dealing {
  device::TaskOrder order;
  double time;  ///< of the busiest, in the unit of row_cost
};
/// How tasks are dealt: a few orders are played through for this many multiprocessors and the quickest is taken. row_cost: time of each row
/// of tiles of one head; head_bytes: what the tasks of one head read again and again;
/// in_turns: rows of one head wait for each other, so that few should run at a time, each dealt after the row before it.
Sm90Dealing sm90_deal(const std::vector<double>& row_cost, std::int64_t heads, std::int64_t batch, std::int64_t head_bytes,
                      std::size_t l2_bytes, double spilling_cost, int multiprocessors, bool first_row_first, bool in_turns = false,
                      bool sequences_inside = false);

/// Tiles that each row of tiles visits.
struct Sm90TileRange {
  std::int64_t begin, end;
};
std::vector<Sm90TileRange> sm90_row_tiles(const Sm90Mask& mask, std::int64_t rows_length, int rows_block, std::int64_t length, int block,
                                          bool transposed);

/// How many these are, plus what starting and ending a row costs.
std::vector<double> sm90_row_cost(const Sm90Mask& mask, std::int64_t rows_length, int rows_block, std::int64_t length, int block,
                                  bool transposed);

/// sm90_deal() of tasks that take every splits-th tile of a row each, with as many splits as even out best.
struct Sm90SplitDealing {
  device::Divisor splits;
  Sm90Dealing dealing;
};
Sm90SplitDealing sm90_deal_splits(const std::vector<Sm90TileRange>& rows, std::int64_t heads, std::int64_t batch, std::int64_t head_bytes,
                                  std::size_t l2_bytes, double spilling_cost, int multiprocessors);

/// In how many parts the keys of a row of tiles are best split, so that all multiprocessors read: 1 unless there are few queries.
device::Divisor sm90_forward_splits(const problem::Problem& problem, const Sm90ForwardConfig& config, int multiprocessors);

}  // namespace foveal::cuda
