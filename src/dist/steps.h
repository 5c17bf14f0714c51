#pragma once
// One rank's part of a plan: what it gathers, in which step, and what it computes with it. All of it follows from the plan.
#include <cstdint>
#include <vector>

#include "dist/plan.h"

namespace foveal::dist {

/// Tokens of one owner that travel as one stretch of rows.
struct Transfer {
  std::int32_t source = 0, sequence = 0;
  Range tokens;            ///< of the sequence
  std::int64_t place = 0;  ///< first row in the source's shard
  std::int64_t row = 0;    ///< first row in the buffer of who receives it
};

/// A stretch of queries against a stretch of keys: rows of the two buffers, and the positions of the first.
struct Segment {
  std::int32_t sequence = 0;
  std::int64_t q_row = 0, q_rows = 0, kv_row = 0, kv_rows = 0;
  std::int64_t q_first = 0, kv_first = 0;
  Range rows() const { return {q_row, q_row + q_rows}; }
  Range keys() const { return {kv_row, kv_row + kv_rows}; }
};

struct Step {
  std::vector<Transfer> keys;  ///< what it waits for, in the order of the axis: rows of the step's buffer
  std::int64_t rows = 0;       ///< of the buffer
  /// Launches: within one, the rows of segments are disjoint and ascend, of queries and of keys.
  std::vector<std::vector<Segment>> launches;
};

struct RankPlan {
  int rank = 0;
  std::vector<Transfer> queries;  ///< of the group, in the order of the axis: rows of the buffer of queries
  std::int64_t q_rows = 0;
  std::vector<Step> steps;  ///< the first needs no other group's keys
};

/// Keys of each sequence that a group's blocks read, as few stretches in the order of the axis.
struct Need {
  std::int32_t sequence;
  Range kv;
};
std::vector<Need> needs_of(const std::vector<Block>& blocks);

/// In which step a rank reads the keys of an owner: 0 is its own group's.
int step_of(const ContextPlan& plan, int rank, int owner);

/// Launches of a step: segments of blocks whose keys are among these. Blocks ascend by sequence and queries.
std::vector<std::vector<Segment>> launches_of(const std::vector<Block>& blocks, const std::vector<Transfer>& queries,
                                              const std::vector<Transfer>& keys);

RankPlan rank_plan(const ContextPlan& plan, int rank);

}  // namespace foveal::dist
