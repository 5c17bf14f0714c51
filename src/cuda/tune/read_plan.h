#pragma once
// The read plan of a backward pass: which kernel sums the terms of each trained read of the score, how, and why. Made once per problem,
// before its kernels are configured; configurations and launches follow it, and explain() prints it.
#include <vector>

#include "cuda/score/planned_read.h"
#include "cuda/tune/sm80.h"
#include "cuda/tune/sm90.h"
#include "foveal/attention.h"

namespace foveal::cuda {

struct ReadPlan {
  std::vector<GradientStorage> storage;  ///< of each parameter
  std::vector<PlannedRead> reads;
  bool hopper = false;                         ///< Hopper kernels sum all reads but those added later
  std::optional<Sm90RowsConfig> rows{};        ///< of rows_sm90, where there are tables per query
  std::optional<Sm90PairsConfig> pairs{};      ///< of pairs_sm90, where gradients have an element for each pair that several share
  std::optional<Sm90CollectConfig> collect{};  ///< of collect_sm90, where the backward kernel has no registers for per-pair terms

  /// The numbers of the reads that a collector sums.
  std::vector<int> of(Collector collector) const;
  /// How many reads have a property.
  template <class Fn>
  int count(Fn&& has) const {
    int found = 0;
    for (const PlannedRead& read : reads) found += has(read);
    return found;
  }
  StagedReads staged() const {
    return {count([](const PlannedRead& read) { return read.is_staged() && read.facts.over == scoring::Varies::row; }),
            count([](const PlannedRead& read) { return read.is_staged() && read.facts.over == scoring::Varies::diagonal; })};
  }
  int early() const {
    return count([](const PlannedRead& read) { return read.is_early(); });
  }
  /// The plan once a configuration of the backward kernel has divided up its shared memory (sm90_bins): which reads have bins, a window, or
  /// go to L2. Where collect_sm90 sums terms, its configuration has said so already.
  ReadPlan placed(const std::vector<ReadBins>& bins) const;
  void describe(Explanation& explanation, const problem::Problem& problem) const;
};

ReadPlan sm90_read_plan(const problem::Problem& problem);
/// config: of the kernel of dq.
ReadPlan sm80_read_plan(const problem::Problem& problem, const Sm80Config& config);

}  // namespace foveal::cuda
