#pragma once
// The read plan of a backward pass: which kernel sums the terms of each trained read of the score, how, and why. Made once per problem, before its
// kernels are configured; configurations and launches follow it, and explain() prints it.
#include <string>
#include <vector>

#include "cuda/score/read_facts.h"
#include "cuda/tune/sm80.h"
#include "cuda/tune/sm90.h"
#include "foveal/attention.h"

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

  std::string text() const;  ///< "bins in backward_sm90: ..."
};

struct ReadPlan {
  std::vector<GradientStorage> storage;  ///< of each parameter
  std::vector<PlannedRead> reads;
  bool hopper = false;                         ///< Hopper kernels sum all reads but those added later
  std::optional<Sm90RowsConfig> rows{};        ///< of rows_sm90, where there are tables per query
  std::optional<Sm90CollectConfig> collect{};  ///< of collect_sm90, where the backward kernel has no registers for per-pair terms

  /// The numbers of the reads that a collector sums.
  std::vector<int> of(Collector collector) const;
  /// How many reads have a property.
  template <class Fn>
  int count(Fn&& has) const {
    int found = 0;
    for (const PlannedRead& read : reads) found += has(read.facts);
    return found;
  }
  StagedReads staged() const {
    return {count([](const ReadFacts& read) { return read.kind == scoring::Reduction::row; }),
            count([](const ReadFacts& read) { return read.kind == scoring::Reduction::diagonal; })};
  }
  int early() const {
    return count([](const ReadFacts& read) { return read.early; });
  }
  /// Decides between bins, a window and L2 once shared memory is divided up (sm90_bins).
  void place(const std::vector<ReadBins>& bins);
  void describe(Explanation& explanation, const problem::Problem& problem) const;
};

ReadPlan sm90_read_plan(const problem::Problem& problem);
/// config: of the kernel of dq.
ReadPlan sm80_read_plan(const problem::Problem& problem, const Sm80Config& config);

}  // namespace foveal::cuda
