#pragma once
// Shared memory, pipelines and tasks of the forward kernels for Hopper.
//
// config.cuh: kProblem, kConfig (a ForwardConfig).
#include "sm90_config.cuh"
#include "schedule/tasks.cuh"
#include "score/score.cuh"
#include "tile/extra_columns.cuh"
#include "tile/key_rows.cuh"
#include "tile/line_values.cuh"
#include "tile/pair_tiles.cuh"
#include "tile/read_tables.cuh"

namespace foveal::device {

constexpr int kBlockQ = kConfig.block_q(), kBlockKv = kConfig.block_kv;
constexpr int kQueries = kConfig.queries(), kThreads = kConfig.threads();
constexpr int kDim = round_up(kProblem.head_dim, 16);
constexpr int kDimV = round_up(kProblem.head_dim_v, 16);
constexpr TileSource kSource = kConfig.tile_source;
constexpr bool kMaskProgram = kSource == TileSource::list && kHasMask;

/// A score is evaluated at existing positions only, so a tile with missing queries is partial. Not for decode, where that is the rule and
/// other queries stand in.
constexpr bool kQueriesMustExist = kHasScore && !kConfig.is_decode();

using Walk = TileWalk<kSource, false, kConfig.split_kv>;
using QueryTile = SwizzledTile<kBlockQ>;
using KvTile = SwizzledTile<kBlockKv>;
using Lines = LineTile<kBlockQ, kBlockKv>;
using Pairs = PairTiles<kBlockQ, kBlockKv, kConfig.pair_stages>;
constexpr int kLineStages = 2;

constexpr ForwardLayout kShared{{.block_q = kBlockQ,
                                 .block_kv = kBlockKv,
                                 .head_dim = kDim,
                                 .head_dim_v = kDimV,
                                 .stages = kConfig.stages,
                                 .query_stages = kConfig.query_stages,
                                 .pairs = Pairs::kShape,
                                 .line_floats = Lines::kFloats,
                                 .column_bytes = KeyColumns<kBlockKv>::kBytes,
                                 .table_bytes = ReadTables::kBytes,
                                 .has_mask = kMaskProgram}};
static_assert(kShared.bytes == kSharedBytes, "the host set aside another size");
constexpr int kKeptWords = ForwardLayout::kept_words(kBlockKv);

/// Which row maxima the softmax uses: that of the first tile (cheap, for bf16), or the running one. overflowed: some task must be redone,
/// with every_tile.
enum class MaxPolicy : u32 { first_tile, overflowed, every_tile };

/// P may have any exponent of fp32: the maximum of a row's first tile can be kept, and small capped scores need none.
constexpr bool kWideRange = kSame<Element, bf16>;

struct Pipelines {
  unsigned char* memory;
  u32 base;
  Pipeline<kConfig.query_stages> query;
  Pipeline<kConfig.stages> key, value;
  Pipeline<kLineStages> line_values;
  Pairs pairs;
  FOVEAL_DEVICE explicit Pipelines(unsigned char* memory)
      : memory(memory),
        base(shared_address(memory)),
        query{base + kShared.barriers},
        key{query.address + Pipeline<kConfig.query_stages>::kBytes},
        value{key.address + Pipeline<kConfig.stages>::kBytes},
        line_values{base + kShared.line_barriers},
        pairs{base + kShared.pairs, {base + kShared.pair_barriers}} {}
  /// Shared by the CTA. A warpgroup may see a change late: rows whose sums overflow report it themselves.
  FOVEAL_DEVICE MaxPolicy max_policy() const {
    return kWideRange ? static_cast<MaxPolicy>(load_any<kEveryLaneArrives>(base + kShared.max_policy)) : MaxPolicy::every_tile;
  }
  FOVEAL_DEVICE void set_max_policy(MaxPolicy policy) const {
    store_any<kEveryLaneArrives>(base + kShared.max_policy, static_cast<u32>(policy));
  }
  FOVEAL_DEVICE static u32 redo_word(int round) { return kShared.redo + 4 * (round / 32 % ForwardLayout::kRedoWords); }
  FOVEAL_DEVICE void redo(int round) const {
    or_shared(base + redo_word(round), 1u << round % 32);
    set_max_policy(MaxPolicy::overflowed);
  }
  /// Is the task of this round done? When redoing, only flagged ones are not.
  FOVEAL_DEVICE bool is_done(int round) const {
    return kWideRange && max_policy() == MaxPolicy::every_tile && !(load_any<kEveryLaneArrives>(base + redo_word(round)) >> round % 32 & 1);
  }
  FOVEAL_DEVICE Lines lines(u32 use) const {
    return {reinterpret_cast<float*>(memory + kShared.lines) + line_values.index(use) * Lines::kFloats};
  }
  FOVEAL_DEVICE KeyColumns<kBlockKv> key_columns(u32 use) const {
    return {base + kShared.columns + line_values.index(use) * KeyColumns<kBlockKv>::kBytes};
  }
  FOVEAL_DEVICE ReadTables tables() const { return {base + kShared.table}; }
  FOVEAL_DEVICE QueryTile query_tile(u32 use) const { return {base + kShared.query + query.index(use) * kShared.query_bytes}; }
  FOVEAL_DEVICE KvTile key_tile(u32 use) const { return {base + kShared.key + key.index(use) * kShared.key_bytes}; }
  FOVEAL_DEVICE KvTile value_tile(u32 use) const { return {base + kShared.value + value.index(use) * kShared.value_bytes}; }
};

/// A task with the tiles it visits.
struct ForwardTask {
  Task task;
  int split;  // of the keys
  Sequence sequence;
  Walk walk;

  FOVEAL_DEVICE int first_query() const { return task.row * kQueries; }
  /// First pair of the tile.
  FOVEAL_DEVICE Position first_pair(const AttentionArgs& args) const {
    return {task.batch,
            task.head,
            first_query() + static_cast<int>(args.q_offset),
            walk.tile * kBlockKv + static_cast<int>(args.kv_offset),
            sequence.len_q,
            sequence.len_kv};
  }

  FOVEAL_DEVICE bool at(int round, const Sm90Args& args) {
    if (!task_at(round, args.order, task)) return false;
    if constexpr (kConfig.split_kv) {
      const int row = divide(task.row, args.parts.kv_splits);
      split = task.row - row * args.parts.kv_splits.value;
      task.row = row;
    }
    sequence = find_sequence(args.attention, task.batch);
    return true;
  }

  /// The next task of this CTA that exists in its sequence and is not done.
  FOVEAL_DEVICE bool next(int& round, const Sm90Args& args, const Pipelines& pipelines) {
    do {
      if (!at(++round, args)) return false;
    } while ((kProblem.varlen && first_query() >= sequence.len_q) || pipelines.is_done(round));
    walk.start(args, args.attention.runs, task.batch, task.head, task.row, first_query(), min(first_query() + kQueries, sequence.len_q),
               sequence.len_kv, kBlockKv);
    if constexpr (kConfig.split_kv) walk.take_split(args.attention.runs, split, args.parts.kv_splits.value);
    // Known to the walk, not tested for each tile: the compiler would assume divergence in the loop over full tiles.
    if (kQueriesMustExist && first_query() + kQueries > sequence.len_q) walk.treat_all_as_partial();
    return true;
  }

  FOVEAL_DEVICE bool next_tile(const Sm90Args& args, bool& partial) {
    return walk.next(args.attention.runs, sequence.len_kv, kBlockKv, partial);
  }

  /// The same, but only if the next tile is full.
  FOVEAL_DEVICE bool next_full_tile() { return walk.next_full(); }
};

/// Is there room for the next task's queries beside the current ones? If not, Q is released as soon as the last scores have arrived, and
/// the last P V is computed while the next Q loads.
constexpr bool kPrefetchesQueries = kConfig.query_stages > 1;
/// Is Q released before the walk moves past its last tile? A list does not know its last tile in advance.
constexpr bool kReleasesQueriesEarly = !kPrefetchesQueries && kSource != TileSource::list;

}  // namespace foveal::device
