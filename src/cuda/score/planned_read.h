#pragma once
// Who sums the terms of a trained read: what emitted text and the configurations of kernels follow. Decided in tune/read_plan.h.
#include <string>

#include "cuda/score/read_facts.h"

namespace foveal::cuda {

enum class Collector {
  keys,       ///< from dk: the sum of k . dk over keys
  registers,  ///< in registers of a warp, along its walk
  lines,      ///< sums along rows or diagonals of a tile, in shared memory
  bins,       ///< exact sums in shared memory (device/tile/read_bins.cuh)
  window,     ///< the same for the elements around a tile
  scatter,    ///< exact sums in L2, by atomics of each pair
  stored,     ///< each element belongs to one pair, which writes it
  rows,       ///< rows_sm90 owns queries and sums their tables in shared memory
  pairs,      ///< pairs_sm90 owns pairs and loops over the batches and heads that share them
  beside_dq,  ///< the portable dq kernel, tile by tile
  walk,       ///< a second run of the portable dq kernel, without dq
  any_pairs,  ///< the portable kernel that owns pairs
};
const char* to_string(Collector collector);

struct PlannedRead {
  int read;  ///< number in the score program
  ReadFacts facts;
  Collector collector;
  const char* kernel;
  std::string why;

  /// A kernel that owns the elements sums it, and those that walk over pairs leave it out.
  bool has_own_kernel() const { return facts.is_added() || collector == Collector::rows; }
  bool has_terms() const { return !has_own_kernel() && !facts.follows_from_dk; }
  /// Its terms are known only together with the probability, and stay in registers.
  bool is_early() const { return has_terms() && facts.early; }
  /// Other warps sum its terms along lines of a tile.
  bool is_staged() const { return has_terms() && (facts.over == scoring::Varies::row || facts.over == scoring::Varies::diagonal); }
  std::string text() const;  ///< "bins in backward_sm90: ..."
};

/// All trained reads, each summed along the walk of the kernel at hand: what holds until a plan says otherwise.
std::vector<PlannedRead> walked_reads(const problem::Problem& problem);

}  // namespace foveal::cuda
