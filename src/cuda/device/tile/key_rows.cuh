#pragma once
// Where the keys of a tile lie, and their load by TMA: in consecutive rows, or on pages that the producer warp looks up, a lane for each box of rows
// that lie together.
//
// config.cuh: kKeyRows (a KeyRows), kPageSize (of keys on pages, a multiple of 16).
#include "schedule/tile_runs.cuh"
#include "score/score.cuh"
#include "sm90_args.cuh"
#include "tile/tma_tile.cuh"

namespace foveal::device {

constexpr KeyRows kKeys = static_cast<KeyRows>(kKeyRows);
constexpr bool kPaged = kKeys == KeyRows::paged;
/// Sequences have as many keys as a run says, and rows beyond them hold anything.
constexpr bool kRaggedKv = kKeys != KeyRows::batched;

constexpr int common_divisor(int a, int b) { return b == 0 ? a : common_divisor(b, a % b); }
/// Of a tile: rows that lie together wherever the tile begins, a multiple of 16. The maps of k and v have boxes of so many.
template <int rows>
constexpr int kBoxRows = kPaged ? common_divisor(kPageSize, rows) : rows;

/// Who loads: one thread, or a warp whose lane l loads box l.
FOVEAL_DEVICE bool loads() { return kPaged ? threadIdx.x < kWarp : threadIdx.x == 0; }
FOVEAL_DEVICE bool leads() { return !kPaged || lane_id() == 0; }

/// Of a tile, or of this lane's box: what the maps of k and v call it.
struct KeyPlace {
  int row, head, batch;
};

/// Of the tile from key `first` of the sequence on, in this batch row where its keys lie in rows. Boxes beyond the sequence are on no page and arrive as zeros: what the table says there means
/// nothing.
template <int rows>
FOVEAL_DEVICE KeyPlace key_place(const Sm90Args& args, const Sequence& sequence, int first, int head, int batch) {
  if constexpr (!kPaged) {
    const int row = sequence.first_kv + first;
    return {row, head, batch};
  }
  static_assert(rows / kBoxRows<rows> <= kWarp, "a lane for each box");
  const int key = first + lane_id() * kBoxRows<rows>;
  int page = -1;
  if (lane_id() < rows / kBoxRows<rows> && key < sequence.len_kv)
    page = args.pages.data[sequence.batch * args.pages.batch + key / kPageSize * args.pages.page];
  return {key % kPageSize, head, page};
}

/// A tile of keys or values; completes on `barrier`, which expects its bytes since the one who leads said so.
template <int rows, int columns>
FOVEAL_DEVICE void load_keys(u32 destination, const TensorMap& map, u32 barrier, const KeyPlace& place) {
  if constexpr (kPaged) {
    __syncwarp();
    if (lane_id() >= rows / kBoxRows<rows>) return;
    destination += lane_id() * kBoxRows<rows> * kChunkRowBytes;
  }
  load_tile<rows, columns>(destination, map, barrier, place.row, place.head, place.batch);
}

}  // namespace foveal::device
