#pragma once
// What a rank launches on a GPU, in which order, and on which rows: parts, as few as the places of its keys allow.
#include <cstdint>
#include <vector>

#include "dist/plan.h"
#include "dist/steps.h"
#include "foveal/attention.h"

namespace foveal::dist {

/// Keys of a launch that lie together.
struct KeyStretch {
  Part::Stretch place;   ///< in rows of the step's buffer
  std::size_t step = 0;  ///< 0: own rows
  int source = 0;        ///< the rank that holds them
};

/// A segment as one launch, and what is there before it.
struct PartLaunch {
  std::size_t step = 0;                 ///< whose keys it needs, or the last of these
  Segment segment;                      ///< kv_row: of the step's buffer; not of spread ones
  bool whole = false;                   ///< it has all keys of its rows, whose results are final
  std::vector<KeyStretch> stretches{};  ///< spread: from segment.kv_first on
  /// Lengths of packed sequences that are this rank's alone, one after the other: an ordinary call in both passes, whose results are final. The segment's
  /// rows are the shard's.
  std::vector<std::int64_t> closed{};
  bool adds_to_q = false, adds_to_kv = false;
  bool whole_keys = false;        ///< nobody else has gradients for its keys: its own are final
  bool beside_transfers = false;  ///< runs while keys are on their way, and leaves multiprocessors to them
  /// Which of PartOrder::kept its rows are some of; -1: none, dq is added to what is there. And its number among the launches that meet these.
  int kept = -1;
  std::uint32_t kept_number = 0;
  bool spread() const { return !stretches.empty(); }
};

/// Backward: rows whose launches keep what is found of them, and whose dq is made once.
struct KeptRange {
  Range rows;
  std::size_t whole = 0;            ///< a launch that has all of these rows
  std::size_t first = 0, last = 0;  ///< of the launches that meet them
};

struct PartOrder {
  std::vector<PartLaunch> launches;
  std::vector<KeptRange> kept;
  std::vector<Range> clear_q;                ///< rows of the queries' buffer that no launch writes first
  std::vector<std::vector<Range>> clear_kv;  ///< likewise, of each step's keys
  std::vector<Range> merged_q;               ///< rows whose results are not final: met by parts, or by nothing
  std::vector<Range> summed_kv;              ///< rows of the shard whose dk and dv are sums: of launches, of other ranks, or of nothing
};

/// What decides the order beside the plan.
struct OrderRequest {
  bool forward = true;
  /// Rows of queries that meet all their keys in one launch, where these lie in own rows, or, if `spread`, in stretches of own and received ones.
  bool whole_rows = false, spread = false;
  bool closed_sequences = false;  ///< packed ones that are this rank's alone make calls of their own
  /// Pairs of tokens that a rank computes while keys arrive; where launches beside transfers leave multiprocessors to them, they are cut so that
  /// not all of the own work does.
  std::int64_t transfer_pairs = 0;
  bool leaves_multiprocessors = false;
  bool returns_early = false;  ///< backward: dk and dv travel beside what is computed last
  bool keeps_rows = false;     ///< backward: launches keep what is found of their rows (Part::keeps_rows)
  bool whole_keys = false;     ///< backward: launches may give final dk and dv, for own keys that are not among
  std::vector<Range> sent{};   ///< rows of the shard whose keys other ranks need
};

/// Own keys first, then those that come; in a backward pass that returns early, the rest of the own ones after these.
PartOrder part_order(const ContextPlan& plan, const Workload& workload, const RankPlan& mine, const OrderRequest& request);

}  // namespace foveal::dist
