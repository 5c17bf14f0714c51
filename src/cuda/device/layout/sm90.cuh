#pragma once
// Shared-memory layouts of the Hopper kernels, in bytes from the base. Plain C++, included by host and device: sizes, offsets and counts
// are defined here only. The host passes the total as kSharedBytes, and each kernel asserts that it agrees.

namespace foveal::device {

/// Tiles are [chunk of 64 columns][row][64] 16-bit elements (tile/swizzled_tile.cuh).
constexpr int kChunkColumns = 64, kChunkRowBytes = 128;
constexpr int chunk_count(int columns, int chunk_step = kChunkColumns) { return (columns + chunk_step - 1) / chunk_step; }
constexpr int tile_bytes(int rows, int columns) { return chunk_count(columns) * rows * kChunkRowBytes; }

/// Two mbarriers a stage.
constexpr int pipeline_bytes(int stages) { return 16 * stages; }

/// A pipeline of tiles of pair reads; its barriers are elsewhere.
struct PairPipelineShape {
  int stages = 0, stage_bytes = 0;
  constexpr int bytes() const { return stages * stage_bytes; }
  constexpr int barrier_bytes() const { return stage_bytes > 0 ? pipeline_bytes(stages) : 0; }
};

/// Columns of a pair read's tile that are loaded for a tile of `columns` keys.
struct PairTileShape {
  int element_bytes;
  bool stairs;  ///< one chunk, whatever the keys
  int keys;     ///< that differ, 0: all
  constexpr int loaded(int columns) const {
    if (stairs) return kChunkRowBytes / element_bytes;
    return keys > 0 && keys < columns ? keys : columns;
  }
  constexpr int bytes(int rows, int columns) const { return tile_bytes(rows, loaded(columns) * element_bytes / 2); }
};

/// Values of a score along lines of a tile (tile/line_values.cuh).
struct LineShape {
  int walk, diagonal;  ///< values for each position of the walk, for each diagonal
  bool checked;        ///< one word tells whether all are tame, in a place of 16 bytes
};
constexpr int line_floats(LineShape lines, int rows, int walked) {
  return lines.walk * walked + lines.diagonal * (rows + walked) + (lines.checked ? 4 : 0);
}

/// k-steps of 16 columns for offsets that are computed as products (tile/extra_columns.cuh).
constexpr int kColumnsOfOffset = 6;
constexpr int offset_steps(int offsets) { return (kColumnsOfOffset * offsets + 15) / 16; }
/// The columns of one step for this many keys.
constexpr int offset_step_bytes(int keys) { return 32 * keys; }

struct ForwardShape {
  int block_q, block_kv, head_dim, head_dim_v, stages, query_stages;
  PairPipelineShape pairs;
  int line_floats;   ///< line values of a tile
  int column_bytes;  ///< extra columns of the keys of a tile
  int table_bytes;   ///< parameters held in shared memory
  bool has_mask;
};

struct ForwardLayout {
  static constexpr int kLineStages = 2, kRedoWords = 2;
  int query_bytes, key_bytes, value_bytes;  ///< of one stage
  int query, key, value, pairs, columns, barriers, line_barriers, pair_barriers;
  int max_policy,
      redo;  ///< a MaxPolicy; a bit for each task of the CTA that must be redone (tasks that share a bit are redone together)
  int lines, kept, table, bytes;

  constexpr explicit ForwardLayout(const ForwardShape& s)
      : query_bytes(tile_bytes(s.block_q, s.head_dim)),
        key_bytes(tile_bytes(s.block_kv, s.head_dim)),
        value_bytes(tile_bytes(s.block_kv, s.head_dim_v)),
        query(0),
        key(query + s.query_stages * query_bytes),
        value(key + s.stages * key_bytes),
        pairs(value + s.stages * value_bytes),
        columns(pairs + s.pairs.bytes()),
        barriers(columns + kLineStages * s.column_bytes),
        line_barriers(barriers + pipeline_bytes(s.query_stages) + 2 * pipeline_bytes(s.stages)),
        pair_barriers(line_barriers + (s.line_floats > 0 ? pipeline_bytes(kLineStages) : 0)),
        max_policy(pair_barriers + s.pairs.barrier_bytes()),
        redo(max_policy + 4),
        lines(max_policy + 16),
        kept(lines + kLineStages * 4 * s.line_floats),
        table(kept + (s.has_mask ? kept_bytes(s.block_kv) : 0)),
        bytes(table + s.table_bytes) {}

  /// Words of the bitmask of kept columns: one bit for each column of a lane, one mask for each of the four lanes of a quad.
  static constexpr int kept_words(int block_kv) { return (block_kv / 4 + 31) / 32; }
  static constexpr int kept_bytes(int block_kv) { return 16 * kept_words(block_kv); }
};

struct BackwardShape {
  int block_q, block_kv, head_dim, head_dim_v, stages;
  int key_chunks, peer_key_chunks;  ///< of this CTA's keys; of the cluster peer's
  int ds_tiles;
  PairPipelineShape pairs;
  int line_floats, read_stage_bytes, read_bin_bytes, table_bytes;
};

struct BackwardLayout {
  int key_bytes, value_bytes, query_bytes, dout_bytes, ds_bytes, stat_bytes, far_bytes;
  int key, value, peer_key, query, dout, ds, pairs, lse, delta, far, barriers, pair_barriers, lines, read_stage, read_bins, table, bytes;

  constexpr explicit BackwardLayout(const BackwardShape& s)
      : key_bytes(s.key_chunks * s.block_kv * kChunkRowBytes),
        value_bytes(tile_bytes(s.block_kv, s.head_dim_v)),
        query_bytes(tile_bytes(s.block_q, s.head_dim)),
        dout_bytes(tile_bytes(s.block_q, s.head_dim_v)),
        ds_bytes(tile_bytes(s.block_kv, s.block_q)),
        stat_bytes(4 * s.block_q),
        far_bytes(s.block_q / 4),
        key(0),
        value(key + key_bytes),
        peer_key(value + value_bytes),
        query(peer_key + s.peer_key_chunks * s.block_kv * kChunkRowBytes),
        dout(query + s.stages * query_bytes),
        ds(dout + s.stages * dout_bytes),
        pairs(ds + s.ds_tiles * ds_bytes),
        lse(pairs + s.pairs.bytes()),
        delta(lse + s.stages * stat_bytes),
        far(delta + s.stages * stat_bytes),
        barriers(far + s.stages * far_bytes),
        pair_barriers(barriers + (s.peer_key_chunks > 0 ? 5 : 4) * pipeline_bytes(1) + 3 * pipeline_bytes(s.stages)),
        lines(pair_barriers + s.pairs.barrier_bytes()),
        read_stage(lines + s.stages * 4 * s.line_floats),
        read_bins(read_stage + s.read_stage_bytes),
        table(read_bins + s.read_bin_bytes),
        bytes(table + s.table_bytes) {}
};

/// Layout in global memory of the fp32 accumulator of dQ (tile/dq_sum.cuh) for a tile of queries.
struct DqSumShape {
  int dim, ctas, parts, part_columns, columns;  ///< columns: of a row, over its parts
  bool splits_columns;

  constexpr DqSumShape(int head_dim, int block_q)
      : dim((head_dim + 15) / 16 * 16),
        ctas(dim > 128 ? 2 : 1),
        parts(2 * ctas),
        part_columns(dim),
        columns(dim),
        splits_columns(block_q == 64) {
    if (!splits_columns) return;
    part_columns = ((dim + parts - 1) / parts + 15) / 16 * 16;
    columns = parts * part_columns;
  }
};

/// The kernels of the backward family, by what they are called in kernels/: backward_sm90, backward_wide_sm90, collect_sm90.
enum class BackwardKernel { narrow, wide, collect };

/// What tells these kernels apart; what they share is in tile/backward_*.cuh.
struct BackwardFamily {
  int block_kv, cluster_size;  ///< keys of a CTA; CTAs that share a task
  bool adds_dq;
  bool prefetches_lse;  ///< loads lse before waiting for S
  /// A stage of Q or dO: by each warp itself, as it also reads statistics; otherwise by one thread, after a barrier of the warpgroup's
  /// readers.
  bool releases_by_warps;

  static constexpr int consumers = 2;  ///< warpgroups
  static constexpr int threads = 128 * (1 + consumers);
  constexpr int task_keys() const { return cluster_size * block_kv; }
  constexpr int dq_warps() const { return adds_dq ? 4 * consumers : 1; }  ///< that add to dQ, or arrive for a tile's turn
  constexpr int ds_tiles() const { return adds_dq ? 2 : 0; }              ///< buffers of dS
  /// Chunks of K that a CTA holds: its own, which begin where column parts of dQ do; of the cluster's other CTA, those for its part of dQ.
  constexpr int key_columns(const DqSumShape& sum) const { return adds_dq ? sum.columns : sum.dim; }
  constexpr int key_step(const DqSumShape& sum) const {
    return adds_dq && sum.splits_columns && sum.dim > 64 ? sum.part_columns : kChunkColumns;
  }
  constexpr int key_chunks(const DqSumShape& sum) const { return chunk_count(key_columns(sum), key_step(sum)); }
  constexpr int peer_key_chunks() const { return cluster_size > 1 ? 2 : 0; }
};

constexpr BackwardFamily backward_family(BackwardKernel kernel) {
  constexpr BackwardFamily narrow{.block_kv = 128, .cluster_size = 1, .adds_dq = true, .prefetches_lse = false, .releases_by_warps = false};
  constexpr BackwardFamily wide{.block_kv = 64, .cluster_size = 2, .adds_dq = true, .prefetches_lse = true, .releases_by_warps = true};
  constexpr BackwardFamily collect{
      .block_kv = 128, .cluster_size = 1, .adds_dq = false, .prefetches_lse = false, .releases_by_warps = true};
  return kernel == BackwardKernel::narrow ? narrow : kernel == BackwardKernel::wide ? wide : collect;
}

/// The same of dK or dV, for the keys of a warpgroup, where several tasks add to them (launch/group_sums.h).
struct GroupSumShape {
  static constexpr int rows = 64;
  int columns, floats;
  constexpr explicit GroupSumShape(int head_dim) : columns((head_dim + 15) / 16 * 16), floats(rows * columns) {}
};

/// Staging buffer of a read's terms (tile/collect_reads.cuh): a row for two keys. Diagonal reads have zero padding between rows.
struct ReadStageShape {
  static constexpr int kZeros = 32, kOverlap = 8, kPad = 3;
  static constexpr int rows(int block_kv) { return block_kv / 2; }
  static constexpr int pitch(int block_q, bool diagonal) { return block_q + kOverlap + (diagonal ? kZeros + kPad : 0); }
  static constexpr int floats(int block_q, int block_kv, bool diagonal) { return kZeros + rows(block_kv) * pitch(block_q, diagonal); }
};

struct PairsShape {
  int block_q, block_kv, head_dim, head_dim_v, stages, tasks_ahead;
  PairPipelineShape pairs;
};

struct PairsLayout {
  int stat_bytes, query, dout, key, value, lse, delta, loaded_bytes, stage_bytes;  ///< of one stage
  int pairs, barriers, task_barriers, pair_barriers, bytes;

  constexpr explicit PairsLayout(const PairsShape& s)
      : stat_bytes(4 * s.block_q),
        query(0),
        dout(query + tile_bytes(s.block_q, s.head_dim)),
        key(dout + tile_bytes(s.block_q, s.head_dim_v)),
        value(key + tile_bytes(s.block_kv, s.head_dim)),
        lse(value + tile_bytes(s.block_kv, s.head_dim_v)),
        delta(lse + stat_bytes),
        loaded_bytes(delta + stat_bytes),
        stage_bytes((loaded_bytes + 1023) / 1024 * 1024),
        pairs(s.stages * stage_bytes),
        barriers(pairs + s.pairs.bytes()),
        task_barriers(barriers + pipeline_bytes(s.stages)),
        pair_barriers(task_barriers + pipeline_bytes(s.tasks_ahead)),
        bytes(pair_barriers + s.pairs.barrier_bytes()) {}
};

/// For kernels/rows_sm90.cuh. bin_words: for each query row. transposed: some read's terms go through shared memory to lanes that own a
/// row.
struct RowsShape {
  int block_q, block_kv, head_dim, head_dim_v, stages, bin_words;
  bool transposed;
};

struct RowsLayout {
  int query_bytes, stage_bytes;
  int query, dout, stage, key, value, barriers, transposed, bins, bytes;  ///< key, value: within a stage
  static constexpr int transposed_pitch(int block_kv) {
    return block_kv + 4;
  }  ///< words of a row; 16-byte pieces of consecutive rows are on different banks

  constexpr explicit RowsLayout(const RowsShape& s)
      : query_bytes(tile_bytes(s.block_q, s.head_dim) + tile_bytes(s.block_q, s.head_dim_v)),
        stage_bytes(tile_bytes(s.block_kv, s.head_dim) + tile_bytes(s.block_kv, s.head_dim_v)),
        query(0),
        dout(tile_bytes(s.block_q, s.head_dim)),
        stage(query_bytes),
        key(0),
        value(tile_bytes(s.block_kv, s.head_dim)),
        barriers(stage + s.stages * stage_bytes),
        transposed((barriers + pipeline_bytes(1) + pipeline_bytes(s.stages) + 15) / 16 * 16),
        bins(transposed + (s.transposed ? 4 * s.block_q * transposed_pitch(s.block_kv) : 0)),
        bytes(bins + 4 * s.block_q * s.bin_words) {}
};
/// How the terms of a row share bins. distinct: eight neighbouring keys have different bins, so that lanes add without conflict. any: two
/// lanes own the row, each with its own copy of the bins, and add serially.
enum class RowBins { distinct, any };
/// Words of one copy of the bins, and from row to row: padded so that lanes that add at the same time mostly hit different banks.
constexpr int row_copy_words(int entries) { return entries | 1; }
constexpr int row_bin_words(int entries, RowBins bins) {
  return bins == RowBins::any ? 2 * row_copy_words(entries) + 1 : (entries + 7) / 16 * 16 + 8;
}

/// Words for the magnitude and range of a tile's binned terms, triple-buffered: a tile's are written while the previous one's are read.
constexpr int read_bin_words(int entries, int copies, bool window) { return entries * copies + 3 * (window ? 3 : 1); }

}  // namespace foveal::device
