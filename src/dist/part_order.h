#pragma once
// What a rank launches on a GPU, in which order and on which rows: as few parts as the layout of its keys allows.
#include <array>
#include <cstdint>
#include <vector>

#include "dist/plan.h"
#include "dist/steps.h"
#include "foveal/attention.h"

namespace foveal::dist {

/// Contiguous keys of a launch.
struct KeyRange {
  Part::KeyRange place;  ///< in rows of the step's buffer
  std::size_t step = 0;  ///< 0: own rows
  int source = 0;        ///< the rank that holds them
};

/// So many launches for own keys may run at once.
constexpr std::size_t own_queues = 3;

/// A segment as one launch, and how it combines with the launches before it.
struct PartLaunch {
  std::size_t step = 0;                ///< the last one whose keys it needs
  Segment segment;                     ///< kv_row: of the step's buffer; not of spread ones
  bool whole = false;                  ///< has all keys of its rows, so that their results are final
  std::vector<KeyRange> key_ranges{};  ///< spread: from segment.kv_first on
  /// Lengths of consecutive packed sequences that this rank holds whole: an ordinary call in both passes, with final
  /// results. The segment's rows are those of the shard.
  std::vector<std::int64_t> closed{};
  bool adds_to_q = false, adds_to_kv = false;
  bool whole_keys = false;        ///< the only launch with gradients for its keys, which are final
  bool beside_transfers = false;  ///< overlaps transfers, and leaves multiprocessors to them
  /// Backward, own keys: launches of different queues run at once. One that has rows of queries or keys in common with earlier launches of
  /// another queue follows that queue: it starts after all launches that are in it by then.
  std::size_t queue = 0;
  std::array<bool, own_queues> follows{};
  /// The entry of PartOrder::kept that its rows belong to (-1: none, dq is accumulated in memory),
  /// and its number among the launches of that entry.
  int kept = -1;
  std::uint32_t kept_number = 0;
  bool spread() const { return !key_ranges.empty(); }
};

/// Backward: rows whose launches share statistics and the sum of dq, which is converted once.
struct KeptRange {
  Range rows;
  std::size_t whole = 0;            ///< a launch that has all of these rows
  std::size_t first = 0, last = 0;  ///< of the launches with some of them
};

struct PartOrder {
  std::vector<PartLaunch> launches;
  std::vector<KeptRange> kept;
  std::vector<Range> clear_q;                ///< rows of queries that must be cleared: no launch writes them first
  std::vector<std::vector<Range>> clear_kv;  ///< likewise, of each step's keys
  std::vector<Range> merged_q;               ///< rows with several parts or none, whose results must be merged or filled in
  std::vector<Range> summed_kv;              ///< rows of the shard whose dk and dv are sums over launches and ranks
};

/// What else decides the order.
struct OrderRequest {
  bool forward = true;
  /// Allows launches with all keys of their rows, where these are contiguous or, if `spread`, in ranges of own and received rows.
  bool whole_rows = false, spread = false;
  bool closed_sequences = false;  ///< packed sequences that this rank holds whole make calls of their own
  /// Pairs of tokens that a rank computes while keys arrive. Where launches leave multiprocessors
  /// to transfers, only so much work overlaps these.
  std::int64_t transfer_pairs = 0;
  bool leaves_multiprocessors = false;
  bool returns_early = false;  ///< backward: the return of dk and dv overlaps the last launches
  bool keeps_rows = false;     ///< backward: launches share statistics of rows (Part::keeps_rows)
  bool whole_keys = false;     ///< backward: launches may give final dk and dv, for own keys not in `sent`
  std::vector<Range> sent{};   ///< rows of the shard whose keys other ranks need
};

/// Own keys first, then received ones; a backward pass that returns early leaves some own keys to the end.
PartOrder part_order(const ContextPlan& plan, const Workload& workload, const RankPlan& mine, const OrderRequest& request);

}  // namespace foveal::dist
