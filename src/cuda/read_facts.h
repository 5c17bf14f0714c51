#pragma once
// The trained reads of a problem's score: how their gradients are stored and what their terms ask of a kernel. The read plan
// (tune/read_plan.h) says who sums them.
#include <cstdint>
#include <vector>

#include "problem/problem.h"

namespace foveal::cuda {

/// How much of the gradients a parameter's reads are stored in.
enum class GradientStorage {
  none,        ///< no gradient is wanted
  zero,        ///< it is exactly zero
  exact_sums,  ///< exact integer sums (device/score/exact_sum.cuh), converted at the end
  stored,      ///< each element is written once, by the pair that it belongs to
  added,       ///< one address per pair, several (batch, head) add to it: a kernel of its own, in a fixed order
};
/// Of each parameter.
std::vector<GradientStorage> gradient_storage(const problem::Problem& problem);

struct ReadFacts {
  std::size_t param;
  GradientStorage storage;
  scoring::Reduction kind;  ///< its reduction; scatter, too, for an element of each pair in exact sums
  /// Its gradient is the sum of k . dk over keys: the factor is the raw score and dk takes in what the score is multiplied with, as in
  /// score * t[head]. The sum over pairs of dS_ij (q_i . k_j) is that over keys of k_j . (sum over queries of dS_ij q_i), and no pair has a
  /// term of its own.
  bool follows_from_dk;
  bool factor_of_score;   ///< the factor depends on the score
  bool index_of_score;    ///< an index does
  bool early;             ///< a thread knows its terms together with the probability and must keep them
  std::int64_t elements;  ///< of a scatter: how many the pairs of one batch and head can touch; otherwise 0
  /// The pairs of a tile touch elements that lie together, so that a window of the parameter can follow the tiles: indices are sums of functions of
  /// positions, with few elements for each key, or the key's position comes first.
  bool lie_together;
  bool covers;  ///< the pairs of a problem touch every element of the parameter, and each of them once for each batch and head

  bool is_added() const { return storage == GradientStorage::added; }
  bool has_terms() const { return !is_added() && !follows_from_dk; }
};
/// How many have terms that are summed along lines of a tile, by other warps.
struct StagedReads {
  int rows = 0, diagonals = 0;
  bool any() const { return rows + diagonals > 0; }
};
/// Where the terms of a scatter are summed in shared memory (device/tile/read_bins.cuh).
struct ReadBins {
  int entries = 0, copies = 0;  ///< elements, or those of a window; of each, for one lane in so many. 0: summed elsewhere
  std::int64_t elements = 0;    ///< ReadFacts::elements
  bool is_window() const { return entries < elements; }
};
/// Of each of the score's trained reads, in their order.
std::vector<ReadFacts> read_facts(const problem::Problem& problem);

}  // namespace foveal::cuda
