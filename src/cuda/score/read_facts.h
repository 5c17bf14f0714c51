#pragma once
// The trained reads of a problem's score: how gradients are stored, and what kernels need to know about their
// terms. Which kernel sums them: planned_read.h.
#include <cstdint>
#include <vector>

#include "problem/problem.h"

namespace foveal::cuda {

/// How the gradient of a parameter is accumulated.
enum class GradientStorage {
  none,        ///< no gradient is wanted
  zero,        ///< it is exactly zero
  exact_sums,  ///< exact integer sums (device/score/exact_sum.cuh), converted at the end
  stored,      ///< each element belongs to one pair, which writes it
  added,       ///< one element per pair, shared by several (batch, head): summed by a kernel of its own, in a fixed order
};
/// One per parameter.
std::vector<GradientStorage> gradient_storage(const problem::Problem& problem);

/// The parameters with exact sums, all together.
struct ExactSums {
  std::int64_t elements = 0;
  double most_terms = 0;  ///< that one element may get
  bool scatters = false;  ///< each pair may add a term of its own
};
ExactSums exact_sums(const problem::Problem& problem);

/// What of trained reads a backward kernel has room for.
struct ReadLimits {
  /// Elements of a parameter that bins hold whole. Of a larger one they hold a window that moves along with the tiles, if its elements lie
  /// so, which leaves room for tables that are read.
  static constexpr std::int64_t whole_bins = 16640;
  /// Elements of a window.
  static constexpr int most_in_window = 16384, least_in_window = 2048;
  /// Reads whose terms are known only together with the probability, and stay in registers.
  static constexpr int early = 2;
};

struct ReadFacts {
  std::size_t param;
  GradientStorage storage;
  scoring::Varies over;  ///< its elements, as of TrainableRead
  /// The gradient is the sum of k . dk over keys, as for score * t[head]: the sum over pairs of dS_ij (q_i . k_j) is the sum over keys of
  /// k_j . (sum over queries of dS_ij q_i), and pairs need no terms.
  bool follows_from_dk;
  bool factor_of_score;   ///< the factor depends on the score
  bool index_of_score;    ///< an index does
  bool early;             ///< terms are known only together with the probability
  std::int64_t elements;  ///< of a scatter: how many the pairs of one batch and head may touch; otherwise 0
  /// The pairs of a tile touch elements close to each other, so that a window of the parameter can move with the tiles: indices are sums of
  /// functions of one position and there are few elements per key, or the key position comes first.
  bool lie_together;
  bool covers;  ///< the pairs of each batch and head touch every element of the parameter exactly once

  /// Each pair may add a term to any element.
  bool scatters() const { return over == scoring::Varies::pair && storage == GradientStorage::exact_sums; }
  bool is_added() const { return storage == GradientStorage::added; }
};
/// How many reads have terms that other warps sum along lines of a tile.
struct StagedReads {
  int rows = 0, diagonals = 0;
  bool any() const { return rows + diagonals > 0; }
  /// Does shared memory hold them beside the tiles of a backward kernel for head dims up to 128? Rows of diagonals are padded.
  bool fit(std::int64_t head_dim) const { return head_dim > 64 ? 2 * rows + 3 * diagonals <= 6 : rows + diagonals <= 3; }
};
/// Where the terms of a scatter are summed in shared memory (device/tile/read_bins.cuh).
struct ReadBins {
  int entries = 0, copies = 0;  ///< elements, or those of a window; copies of each for different lanes, 0: summed elsewhere
  std::int64_t elements = 0;    ///< ReadFacts::elements
  bool is_window() const { return entries < elements; }
};
/// One per trained read of the score.
std::vector<ReadFacts> read_facts(const problem::Problem& problem);

}  // namespace foveal::cuda
