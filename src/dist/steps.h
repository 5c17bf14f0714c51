#pragma once
// One rank's part of a plan, derived from the plan: what it gathers in which step, and what it computes with that.
#include <cstdint>
#include <vector>

#include "dist/plan.h"

namespace foveal::dist {

/// Consecutive rows of one owner that are sent together.
struct Transfer {
  std::int32_t source = 0, sequence = 0;
  Range tokens;            ///< of the sequence
  std::int64_t place = 0;  ///< first row in the source's shard
  std::int64_t row = 0;    ///< first row in the receiver's buffer
};

/// Consecutive queries against consecutive keys: rows of both buffers, and the global positions of the first.
struct Segment {
  std::int32_t sequence = 0;
  std::int64_t q_row = 0, q_rows = 0, kv_row = 0, kv_rows = 0;
  std::int64_t q_first = 0, kv_first = 0;
  Range rows() const { return {q_row, q_row + q_rows}; }
  Range keys() const { return {kv_row, kv_row + kv_rows}; }
};

struct Step {
  std::vector<Transfer> keys;  ///< to receive, in the order of the axis: rows of the step's buffer
  std::int64_t rows = 0;       ///< of the buffer
  /// Within one launch the segments' rows ascend and are disjoint, both of queries and of keys.
  std::vector<std::vector<Segment>> launches;
};

struct RankPlan {
  int rank = 0;
  std::vector<Transfer> queries;  ///< of the group, in the order of the axis: rows of the buffer of queries
  std::int64_t q_rows = 0;
  std::vector<Step> steps;  ///< the first needs no other group's keys
};

/// The keys that a group's blocks read, as few ranges as possible, in the order of the axis.
struct Need {
  std::int32_t sequence;
  Range kv;
};
std::vector<Need> needs_of(const std::vector<Block>& blocks);

/// The step in which a rank reads the keys of an owner; 0 for its own group.
int step_of(const ContextPlan& plan, int rank, int owner);

/// The launches of a step: segments of blocks with these keys. Blocks are sorted by sequence and queries.
std::vector<std::vector<Segment>> launches_of(const std::vector<Block>& blocks, const std::vector<Transfer>& queries,
                                              const std::vector<Transfer>& keys);

RankPlan rank_plan(const ContextPlan& plan, int rank);

}  // namespace foveal::dist
