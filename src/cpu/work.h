#pragma once
// How a problem is cut up: sequences, tiles of lanes with the kv blocks each must visit, and lists of tasks of about equal cost.
#include <cstdint>
#include <vector>

#include "mask/block_mask.h"
#include "problem/problem.h"

namespace foveal::cpu {

/// One batch row, or one packed sequence.
struct Sequence {
  std::int32_t index = 0;                  ///< the symbol `batch`
  std::int64_t batch = 0;                  ///< row of the tensors
  std::int64_t q_begin = 0, kv_begin = 0;  ///< first token
  std::int32_t seqlen_q = 0, seqlen_kv = 0;
};

/// The lanes of a tile: `heads` query heads of one kv head, times `queries` queries; lane = (head - head_begin) * queries + (q - q_begin).
struct LaneTile {
  std::int32_t head, heads, q, queries;
  std::int64_t run_begin, run_end;  ///< in Work::runs: the kv blocks to visit
  std::int64_t blocks;              ///< how many
  int lanes() const { return heads * queries; }
};

/// All tiles of one sequence and kv head, in order of their queries.
struct TileGroup {
  std::int32_t sequence, kv_head;
  std::int64_t tile_begin, tile_end;
  std::int64_t blocks;
};

/// Tiles [begin, end) of one group.
struct Task {
  std::int64_t group, tile_begin, tile_end;
  std::int64_t split;  ///< which share of its group, in Work::splits()
  std::int64_t cost;
};

/// Tile shape, fixed by the table of operations.
struct Geometry {
  int lanes, block_kv;
};

struct Work {
  std::vector<Sequence> sequences;
  std::vector<LaneTile> tiles;
  std::vector<TileGroup> groups;
  std::vector<mask::Run> runs;
  std::int64_t full = 0, partial = 0, empty = 0;  ///< tiles x blocks

  /// Tasks of up to `tiles_per_task` tiles, dearest first.
  std::vector<Task> tasks(int tiles_per_task) const;
  /// Each group cut into `splits` tasks of about equal cost, in order of group and split; some may be empty.
  std::vector<Task> splits(std::int64_t splits) const;
};

/// True when tiles and runs follow from the problem alone: fixed lengths, and a mask that reads no parameter.
bool work_is_static(const problem::Problem& problem);
/// `buffers` may be null when the work is static.
Work plan_work(const problem::Problem& problem, const Geometry& geometry, const problem::Buffers* buffers);

/// An upper bound of the tiles of one group, without data.
std::int64_t max_tiles_per_group(const problem::Problem& problem, const Geometry& geometry);

}  // namespace foveal::cpu
