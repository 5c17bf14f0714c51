#pragma once
// The read plan of a backward pass: for each trained read of the score who sums its terms, in which kernel, and why. Made once for a problem,
// before its kernels are configured: configurations and launches take from it what they run, and explain() prints it.
#include <string>
#include <vector>

#include "cuda/read_facts.h"
#include "cuda/tune/sm80.h"
#include "cuda/tune/sm90.h"
#include "foveal/attention.h"

namespace foveal::cuda {

enum class Collector {
  keys,       ///< from dk: the sum of k . dk over keys
  registers,  ///< each warp sums along its walk
  lines,      ///< sums along rows or diagonals of a tile, in shared memory
  bins,       ///< an integer for each element in shared memory (device/tile/read_bins.cuh)
  window,     ///< the same for the elements around a tile
  scatter,    ///< exact sums in L2, a term for each pair
  stored,     ///< each element is written by the pair that it belongs to
  rows,       ///< a kernel of its own, which owns queries and sums the table of each in shared memory
  pairs,      ///< a kernel of its own, which owns pairs and walks whoever shares them
  beside_dq,  ///< the portable kernel of dq, tile by tile
  walk,       ///< the same by a pass of that kernel without dq
  any_pairs,  ///< a portable kernel that owns pairs, in any form
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
  bool hopper = false;                         ///< Hopper kernels collect, but for what is added later
  std::optional<Sm90RowsConfig> rows{};        ///< of rows_sm90, where there are tables for each query
  std::optional<Sm90CollectConfig> collect{};  ///< of collect_sm90, where the backward kernel has no registers for terms of pairs

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
  /// Decides between bins, a window and L2, once it is known what has room in shared memory (sm90_bins).
  void place(const std::vector<ReadBins>& bins);
  void describe(Explanation& explanation, const problem::Problem& problem) const;
};

ReadPlan sm90_read_plan(const problem::Problem& problem);
/// config: of the kernel of dq.
ReadPlan sm80_read_plan(const problem::Problem& problem, const Sm80Config& config);

}  // namespace foveal::cuda
