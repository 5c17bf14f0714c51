#pragma once
// Where the keys of a tile are, and their TMA loads: contiguous rows; pages that the producer warp looks up, one lane for each box of
// contiguous rows; or ranges of two memories, one of which may still be in flight from other ranks. A tile within one range is loaded
// as one box: with boxes of 32 rows, tiles of 160 took 1.06 to 1.09 times as long.
//
// config.cuh: kProblem.
#include "ptx/mbarrier.cuh"
#include "schedule/tile_runs.cuh"
#include "score/score.cuh"
#include "sm90_args.cuh"
#include "tile/tma_tile.cuh"

namespace foveal::device {

constexpr KeyRows kKeys = kProblem.key_rows;
constexpr bool kPaged = kKeys == KeyRows::paged, kSpread = kKeys == KeyRows::spread;
constexpr bool kLooksUp = kPaged || kSpread;
/// Rows beyond the end of a sequence hold arbitrary data.
constexpr bool kRaggedKv = kKeys != KeyRows::batched;
/// The tensor maps of k and v have a batch dimension.
constexpr bool kKeysInBatches = kKeys == KeyRows::batched || kSpread;

constexpr int common_divisor(int a, int b) { return b == 0 ? a : common_divisor(b, a % b); }
/// Rows of a tile that are contiguous wherever it begins, a multiple of 16: the box of the maps of k and v.
template <int rows>
constexpr int kBoxRows = kLooksUp ? common_divisor(kProblem.page_size, rows) : rows;
template <int rows>
constexpr bool kMayBeOneBox = kSpread&& kBoxRows<rows> < rows;

/// The loader is one thread, or a warp whose lane l loads box l.
FOVEAL_DEVICE bool is_loader() { return kLooksUp ? threadIdx.x < kWarp : threadIdx.x == 0; }
FOVEAL_DEVICE bool is_leader() { return !kLooksUp || lane_id() == 0; }

/// Argument type of the forward kernels.
template <bool spread>
struct ArgsOf {
  using Type = Sm90Args;
};
template <>
struct ArgsOf<true> {
  using Type = SpreadArgs;
};
using ForwardArgs = ArgsOf<kSpread>::Type;

/// TMA coordinates of a tile, or of this lane's box.
struct KeyCoord {
  int row = 0, head = 0, batch = 0;
  // kSpread, to choose the map:
  int range = 0;
  bool received = false, one_box = false;  // one_box: lane 0 loads the whole tile
};

FOVEAL_DEVICE const TensorMap& map_of_keys(const Sm90Args& args, const KeyCoord&) { return args.k; }
FOVEAL_DEVICE const TensorMap& map_of_values(const Sm90Args& args, const KeyCoord&) { return args.v; }
FOVEAL_DEVICE const TensorMap& map_of_keys(const SpreadArgs& args, const KeyCoord& coord) {
  const SpreadKeys& keys = args.spread;
  return coord.one_box ? (coord.received ? keys.sent_tile_k : keys.tile_k) : coord.received ? keys.k : args.k;
}
FOVEAL_DEVICE const TensorMap& map_of_values(const SpreadArgs& args, const KeyCoord& coord) {
  const SpreadKeys& keys = args.spread;
  return coord.one_box ? (coord.received ? keys.sent_tile_v : keys.tile_v) : coord.received ? keys.v : args.v;
}

/// By one thread, before the first load.
FOVEAL_DEVICE void prefetch_key_maps(const Sm90Args& args) { tma_prefetch_map(args.k), tma_prefetch_map(args.v); }
FOVEAL_DEVICE void prefetch_key_maps(const SpreadArgs& args) {
  const SpreadKeys& keys = args.spread;
  tma_prefetch_map(args.k), tma_prefetch_map(args.v), tma_prefetch_map(keys.k), tma_prefetch_map(keys.v);
  tma_prefetch_map(keys.tile_k), tma_prefetch_map(keys.tile_v), tma_prefetch_map(keys.sent_tile_k), tma_prefetch_map(keys.sent_tile_v);
}

/// kSpread: what this thread has seen arrive.
struct ArrivedKeys {
  u32 ranges = 0;  ///< bitmask
  int head = 0;    ///< of this head and all before it
};

/// Coordinates of the box at `key`, once it has arrived.
FOVEAL_DEVICE KeyCoord coord_in_ranges(const SpreadKeys& keys, ArrivedKeys& arrived, int key, int head, int batch) {
  int at = 0;
  while (at + 1 < keys.count && keys.range[at + 1].first <= key) ++at;
  const KeyRange& range = keys.range[at];
  if (head > arrived.head) arrived = {0, head};
  if (range.word >= 0 && !(arrived.ranges >> at & 1)) {
    int later = range.slices - 1;  // slices after this head's
    for (int end = keys.heads >> later; later > 0 && head >= end; end *= 2) --later;
    const u32 wanted = range.arrived - later;
    constexpr u32 kPolls = 1024;  // polls between two checks of host memory, which is far away
    for (u32 polls = 1; static_cast<int>(load_acquire_system(keys.words + range.word) - wanted) < 0; ++polls)
      if (polls % kPolls == 0 && load_acquire_system(keys.failed) != 0) break;
    fence_async_proxy_of_all_memory();
    arrived.ranges |= 1u << at;
  }
  return {key + range.shift, head, batch, at, range.word != kOwnKeys};
}

/// Coordinates of the tile at key `first` of the sequence. Boxes beyond the sequence are out of bounds and zero-filled, whatever the table
/// holds.
template <int rows, class Args>
FOVEAL_DEVICE KeyCoord key_coord(const Args& args, const Sequence& sequence, int first, int head, int batch, ArrivedKeys& arrived) {
  if constexpr (!kLooksUp) {
    const int row = sequence.first_kv + first;
    return {row, head, batch};
  }
  static_assert(rows / kBoxRows<rows> <= kWarp, "a lane for each box");
  const int key = first + lane_id() * kBoxRows<rows>;
  const bool exists = lane_id() < rows / kBoxRows<rows> && key < sequence.len_kv;
  if constexpr (kSpread) {
    KeyCoord coord = exists ? coord_in_ranges(args.spread, arrived, key, head, batch) : KeyCoord{0, head, -1};
    if constexpr (kMayBeOneBox<rows>) {
      __syncwarp();
      const u32 first_range = uniform(coord.range);
      coord.one_box = __all_sync(~0u, lane_id() >= rows / kBoxRows<rows> || (exists && coord.range == static_cast<int>(first_range)));
    }
    return coord;
  }
  int page = -1;
  if (exists) page = args.pages.data[sequence.batch * args.pages.batch + key / kProblem.page_size * args.pages.page];
  return {key % kProblem.page_size, head, page};
}

/// Loads a tile of keys or values; completes on `barrier`, where the leader has announced the bytes. map: as chosen for these coordinates.
template <int rows, int columns>
FOVEAL_DEVICE void load_keys(u32 destination, const TensorMap& map, u32 barrier, const KeyCoord& coord) {
  if constexpr (kLooksUp) {
    __syncwarp();
    if (lane_id() >= (coord.one_box ? 1 : rows / kBoxRows<rows>)) return;
    destination += lane_id() * kBoxRows<rows> * kChunkRowBytes;
  }
  load_tile<rows, columns>(destination, map, barrier, coord.row, coord.head, coord.batch);
}

}  // namespace foveal::device
