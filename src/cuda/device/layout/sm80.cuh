#pragma once
// Shared-memory layouts of the portable kernels, in bytes from the base. Plain C++, included by host and device: sizes, offsets and counts
// are defined here only. The host passes the total as kSharedBytes, and each kernel asserts that it agrees.

namespace foveal::device {

/// Of a tile with this many columns of a matrix: column_split warps take their share of them, in steps of the tensor cores.
constexpr int padded_dim(int dim, int column_split) {
  const int step = 16 * column_split;
  return (dim + step - 1) / step * step;
}

/// Of a row of a tile for ldmatrix: 16 bytes longer, so that eight consecutive rows are on different banks (tile/shared_tile.cuh).
constexpr int padded_row_bytes(int columns, int element_bytes) { return columns * element_bytes + 16; }

/// Elements from row to row of the terms of a tile of pairs, so that the pairs of a warp are on different banks.
constexpr int term_pitch(int block_kv) { return block_kv + 8; }

struct Sm80Shape {
  int block_q, block_kv, dim, dim_v;  ///< dim, dim_v: padded_dim
  int stages, warps;
  int element_bytes, real_bytes;  ///< real: of scores and statistics
  bool has_mask;
  bool stages_terms;  ///< terms of trained reads are summed along columns or diagonals of a tile

  constexpr int tile_bytes(int rows, int columns) const { return rows * padded_row_bytes(columns, element_bytes); }
};

/// For kernels/forward_sm80.cuh, where the output takes the place of q, and kernels/measure_sm80.cuh, which has none.
struct ForwardSm80Layout {
  int query, key, value, kept, bytes;

  constexpr ForwardSm80Layout(const Sm80Shape& s, bool holds_output)
      : query(0),
        key(query + s.tile_bytes(s.block_q, holds_output && s.dim_v > s.dim ? s.dim_v : s.dim)),
        value(key + s.tile_bytes(s.stages * s.block_kv, s.dim)),
        kept(value + s.tile_bytes(s.stages * s.block_kv, s.dim_v)),
        bytes(kept + s.block_kv) {}
};

/// For tile/dkdv_tile.cuh: the row statistics have as many stages as q and dout.
struct DkdvSm80Layout {
  int key, value, query, dout, lse2, largest, delta, nonfinite, bytes;

  constexpr explicit DkdvSm80Layout(const Sm80Shape& s)
      : key(0),
        value(key + s.tile_bytes(s.block_kv, s.dim)),
        query(value + s.tile_bytes(s.block_kv, s.dim_v)),
        dout(query + s.tile_bytes(s.stages * s.block_q, s.dim)),
        lse2(dout + s.tile_bytes(s.stages * s.block_q, s.dim_v)),
        largest(lse2 + s.stages * s.block_q * s.real_bytes),
        delta(largest + s.stages * s.block_q * s.real_bytes),
        nonfinite(delta + s.stages * s.block_q * s.real_bytes),
        bytes(nonfinite + (s.has_mask ? s.block_q : 0)) {}
};

/// For kernels/pairs_sm80.cuh.
struct PairsSm80Layout {
  int query, dout, key, value, kept, bytes;

  constexpr explicit PairsSm80Layout(const Sm80Shape& s)
      : query(0),
        dout(query + s.tile_bytes(s.block_q, s.dim)),
        key(dout + s.tile_bytes(s.block_q, s.dim_v)),
        value(key + s.tile_bytes(s.stages * s.block_kv, s.dim)),
        kept(value + s.tile_bytes(s.stages * s.block_kv, s.dim_v)),
        bytes(kept + s.block_kv) {}
};

/// For tile/dq_tile.cuh: a tile of pairs, a real for each warp, and the terms of reads.
struct DqSm80Layout {
  PairsSm80Layout pairs;
  int scratch, terms, bytes;

  constexpr explicit DqSm80Layout(const Sm80Shape& s)
      : pairs(s),
        scratch(pairs.bytes),
        terms((scratch + s.warps * s.real_bytes + 15) / 16 * 16),
        bytes(terms + (s.stages_terms ? s.block_q * term_pitch(s.block_kv) * s.real_bytes : 0)) {}
};

/// Of kernels/two_scan_sm80.cuh, whose halves follow each other in the same memory.
constexpr int two_scan_bytes(const Sm80Shape& s) {
  const int keys = DkdvSm80Layout(s).bytes, queries = DqSm80Layout(s).bytes;
  return keys > queries ? keys : queries;
}

}  // namespace foveal::device
