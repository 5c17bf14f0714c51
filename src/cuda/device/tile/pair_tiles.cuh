#pragma once
// Reads of one element per pair that the copy engine brings: a ring of tiles in shared memory, [query][64 keys] with 128-byte swizzle like all others, and
// what a thread finds there. The blocks of a fragment are what ldmatrix gives, so that values stay packed until they are used.
//
// config.cuh: kPairStages, at least 1 where kPairTiles is.
#include "element.cuh"
#include "score/score.cuh"
#include "tile/tma_tile.cuh"

namespace foveal::device {

/// Tiles of kRows queries by kColumns keys, one for each read.
template <int kRows, int kColumns>
struct PairTiles {
  static constexpr int kStages = kPairTiles > 0 ? kPairStages : 1;
  static constexpr int kTileBytes = tile_bytes(kRows, kColumns);
  static constexpr int kBytes = kStages * kPairTiles * kTileBytes;
  static constexpr int kBarrierBytes = kPairTiles > 0 ? RingBarriers<kStages>::kBytes : 0;
  u32 base;
  RingBarriers<kStages> ring;

  FOVEAL_DEVICE u32 tile(u32 use, int v) const { return base + (ring.index(use) * kPairTiles + v) * kTileBytes; }

  /// By the thread that loads; first: the tile's first pair, which exists.
  FOVEAL_DEVICE void load(const Sm90Args& args, const Position& first, u32 use) const {
    if constexpr (kPairTiles > 0) {
      ring.wait_empty(use);
      mbarrier_arrive_expect_bytes(ring.full(use), kPairTiles * kTileBytes);
      load_from<0>(args, first, use);
    }
  }

 private:
  template <int v>
  FOVEAL_DEVICE void load_from(const Sm90Args& args, const Position& first, u32 use) const {
    int place[4] = {};
    pair_tile_place<v>(first, args.attention.score, place);
#pragma unroll
    for (int chunk = 0; chunk < chunk_count(kColumns); ++chunk) {
      tma_load(tile(use, v) + chunk * kRows * kChunkRowBytes, args.pairs[v], ring.full(use), place[0] + chunk * kChunkColumns, place[1], place[2],
               place[3]);
    }
    if constexpr (v + 1 < kPairTiles) load_from<v + 1>(args, first, use);
  }
};

/// Values of eight registers of a fragment.
struct TiledValues {
  u32 word[kPairTileSlots][4];

  /// Of register i.
  template <int v = 0>
  FOVEAL_DEVICE void put_into(Pair& pair, int i) const {
    if constexpr (v < kPairTiles) {
      const u32 two = word[v][i % 8 / 2];
      pair.tiled[v] = to_real(typename PairTileElementOf<v>::type{static_cast<u16>(i % 2 == 0 ? two : two >> 16)});
      put_into<v + 1>(pair, i);
    }
  }
};

/// What one warp needs of the tiles of one use: the 16 rows of its fragment, which are queries, or keys when transposed.
template <bool transposed, int kRows, int kColumns>
struct TiledView {
  u32 address[kPairTileSlots];  // of the row that this lane names, in the first blocks

  /// first: the warp's first row of the tile.
  FOVEAL_DEVICE TiledView(const PairTiles<kRows, kColumns>& tiles, u32 use, int first) {
    const int along = lane_id() % 8, second = lane_id() / 8 & 1, third = lane_id() / 16;
#pragma unroll
    for (int v = 0; v < kPairTiles; ++v) {
      if constexpr (transposed) {
        const int key = first + 8 * second, query = 8 * third + along;
        address[v] = tiles.tile(use, v) + key / kChunkColumns * kRows * kChunkRowBytes + query * kChunkRowBytes + ((key % kChunkColumns / 8) ^ along) * 16;
      } else {
        address[v] = tiles.tile(use, v) + (first + 8 * second + along) * kChunkRowBytes + (third ^ along) * 16;
      }
    }
  }

  /// Registers 8 n .. 8 n + 7: 16 columns of the fragment. By all lanes.
  FOVEAL_DEVICE TiledValues load(int n) const {
    TiledValues values;
#pragma unroll
    for (int v = 0; v < kPairTiles; ++v) {
      load_blocks<transposed>(values.word[v], transposed ? address[v] + 16 * n * kChunkRowBytes
                                                         : (address[v] ^ (n % 4 * 32)) + n / 4 * kRows * kChunkRowBytes);
    }
    return values;
  }
};

}  // namespace foveal::device
