#pragma once
// The division of a problem: sequences, tiles of lanes with the KV blocks that each visits, and balanced lists of tasks.
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <optional>
#include <vector>

#include "base/divide.h"
#include "mask/block_mask.h"
#include "problem/problem.h"

namespace foveal::cpu {

/// One batch row, one packed sequence, or a part of one.
struct Sequence {
  std::int32_t index = 0;                    ///< number
  std::int32_t symbol = 0;                   ///< the symbol `batch`
  std::int64_t batch = 0;                    ///< row of the tensors
  std::int64_t q_begin = 0, kv_begin = 0;    ///< first token
  std::int32_t seqlen_q = 0, seqlen_kv = 0;  ///< tokens here
  std::int64_t q_first = 0, kv_first = 0;    ///< positions of the first ones
  std::int32_t whole_q = 0, whole_kv = 0;    ///< the symbols seqlen_q and seqlen_kv

  std::int64_t blocks(int block_kv) const { return base::divide_up(std::int64_t{seqlen_kv}, block_kv); }
};

/// The lanes of a tile: `heads` query heads of one kv head from `head` on, one after the other, each with `queries` queries from `q` on.
struct LaneTile {
  std::int32_t head, heads, q, queries;
  std::int64_t run_begin, run_end;  ///< in Work::runs: the kv blocks to visit
  std::int64_t blocks;              ///< how many
  int lanes() const { return heads * queries; }
};

/// Walks the kv blocks of a tile in order.
class BlockCursor {
 public:
  BlockCursor() = default;
  BlockCursor(const mask::Run* begin, const mask::Run* end) : run_(begin), end_(end) {}
  static constexpr std::int32_t none = std::numeric_limits<std::int32_t>::max();
  /// The first block >= from, or none.
  std::int32_t next(std::int32_t from) {
    while (run_ != end_ && run_->end <= from) ++run_;
    return run_ == end_ ? none : run_->begin > from ? run_->begin : from;
  }
  bool full() const { return run_->full; }  ///< of the block that next() gave last

 private:
  const mask::Run* run_ = nullptr;
  const mask::Run* end_ = nullptr;
};

/// All tiles of one sequence and kv head, in order of their queries.
struct TileGroup {
  std::int32_t sequence, kv_head;
  std::int64_t tile_begin, tile_end;
  std::int64_t blocks;
};

/// Tiles [begin, end) of one group, or of this group of a sequence and the next ones.
struct Task {
  std::int64_t group, tile_begin, tile_end;
  std::int64_t share;  ///< of its group's tiles, in Work::shares()
  std::int64_t cost;
};

using Tasks = std::pmr::vector<Task>;

/// Tile shape, fixed by the table of operations.
struct Geometry {
  int lanes, block_kv;
};

struct Work {
  explicit Work(std::pmr::memory_resource* memory) : sequences(memory), tiles(memory), groups(memory), runs(memory) {}

  std::pmr::vector<Sequence> sequences;
  std::pmr::vector<LaneTile> tiles;
  std::pmr::vector<TileGroup> groups;
  std::pmr::vector<mask::Run> runs;
  std::int64_t full = 0, partial = 0, empty = 0;  ///< tiles x blocks

  const TileGroup& group(const Task& task) const { return groups[static_cast<std::size_t>(task.group)]; }
  const Sequence& sequence(const TileGroup& of) const { return sequences[static_cast<std::size_t>(of.sequence)]; }
  const LaneTile& tile(std::int64_t number) const { return tiles[static_cast<std::size_t>(number)]; }
  BlockCursor blocks(const LaneTile& tile) const { return {runs.data() + tile.run_begin, runs.data() + tile.run_end}; }

  /// first[group] = blocks of keys of all groups before it. The result is the most blocks of any group.
  std::int64_t number_blocks(int block_kv, std::int64_t* first) const;

  /// Also for lists about this work.
  std::pmr::memory_resource* memory() const { return tiles.get_allocator().resource(); }
  /// Tasks of up to `tiles_per_task` tiles of a group, longest first (LPT order).
  Tasks tasks(int tiles_per_task) const;
  /// Tasks of all tiles of up to `groups` groups of a sequence, longest first.
  Tasks tasks_of_groups(int groups) const;
  /// Each group cut into `shares` tasks of about equal cost, in order of group and share; some may be empty.
  Tasks shares(std::int64_t shares) const;
};

/// Divides a problem: once where tiles and runs depend on the problem alone (fixed lengths, a mask that reads no parameter),
/// otherwise in every run, in preallocated memory.
class WorkPlanner {
 public:
  /// The problem must outlive it.
  WorkPlanner(const problem::Problem& problem, const Geometry& geometry);

  bool is_static() const { return is_static_; }
  Work plan() const;
  Work plan(const problem::Buffers& buffers, std::pmr::memory_resource* memory) const;

  /// Upper bounds: the memory of plan(buffers), and the lengths of lists about its work.
  std::size_t run_bytes() const;
  std::int64_t max_tiles() const { return max_tiles_; }
  /// Exact where all sequences have the same length; estimated from the mean length of packed ones.
  std::int64_t likely_tiles() const;
  std::int64_t max_groups() const;
  std::int64_t max_blocks() const;  ///< of all groups
  std::int64_t max_tiles_per_group() const;

 private:
  class Planning;
  Work plan(const problem::Buffers* buffers, std::pmr::memory_resource* memory) const;

  const problem::Problem& problem_;
  Geometry geometry_;
  bool reads_head_, reads_batch_, reads_params_, is_static_;
  std::optional<mask::Classifier> classifier_;  ///< none: no mask
  std::int64_t max_tiles_, max_rows_;           ///< rows: of tiles that are classified
  std::int32_t runs_per_row_;                   ///< capacity per row in a run; a row with more merges some into partial ones
};

}  // namespace foveal::cpu
