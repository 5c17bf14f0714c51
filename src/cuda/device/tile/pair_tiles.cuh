#pragma once
// Reads of one element per pair that TMA brings: a ring of tiles in shared memory, [query][chunk of keys] with 128-byte swizzle like all others, and
// what a thread finds there. The blocks of a fragment are what ldmatrix gives where elements have 16 bits, so that values stay packed until they are used;
// elements of 32 bits are loaded one by one, or as neighbours.
//
// config.cuh: kPairStages, at least 1 where kPairTiles is.
#include "element.cuh"
#include "score/score.cuh"
#include "tile/fragment.cuh"
#include "tile/tma_tile.cuh"

namespace foveal::device {

template <int v>
constexpr int kPairTileElementBytes = sizeof(typename PairTileElementOf<v>::type);
/// Bytes of the tiles of reads before `end`, for kColumns keys.
template <int end, int kRows, int kColumns>
constexpr int pair_tiles_before() {
  if constexpr (end == 0) {
    return 0;
  } else {
    return pair_tiles_before<end - 1, kRows, kColumns>() + tile_bytes(kRows, kColumns * kPairTileElementBytes<end - 1> / 2);
  }
}

/// Tiles of kRows queries by kColumns keys, one for each read.
template <int kRows, int kColumns>
struct PairTiles {
  static constexpr int kStages = kPairTiles > 0 ? kPairStages : 1;
  static constexpr int kStageBytes = pair_tiles_before<kPairTiles, kRows, kColumns>();
  static constexpr PairRingShape kShape{kStages, kStageBytes};
  u32 base;
  RingBarriers<kStages> ring;

  template <int v>
  FOVEAL_DEVICE u32 tile(u32 use) const {
    return base + ring.index(use) * kStageBytes + pair_tiles_before<v, kRows, kColumns>();
  }

  /// By the thread that loads; first: the tile's first pair, which exists.
  FOVEAL_DEVICE void load(const Sm90Args& args, const Position& first, u32 use) const {
    if constexpr (kPairTiles > 0) {
      ring.wait_empty(use);
      mbarrier_arrive_expect_bytes(ring.full(use), kStageBytes);
      load_from<0>(args, first, use);
    }
  }

 private:
  template <int v>
  FOVEAL_DEVICE void load_from(const Sm90Args& args, const Position& first, u32 use) const {
    constexpr int kChunk = kChunkRowBytes / kPairTileElementBytes<v>;  // columns
    int place[4] = {};
    pair_tile_place<v>(first, args.attention.score, place);
#pragma unroll
    for (int chunk = 0; chunk < chunk_count(kColumns, kChunk); ++chunk) {
      tma_load(tile<v>(use) + chunk * kRows * kChunkRowBytes, args.pairs[v], ring.full(use), place[0] + chunk * kChunk, place[1], place[2],
               place[3]);
    }
    if constexpr (v + 1 < kPairTiles) load_from<v + 1>(args, first, use);
  }
};

/// Values of eight registers of a fragment: pairs of 16-bit elements, or one of 32 bits each.
struct TiledValues {
  u32 word[kPairTileSlots][8];

  /// Of register i.
  template <int v = 0>
  FOVEAL_DEVICE void put_into(Pair& pair, int i) const {
    if constexpr (v < kPairTiles) {
      if constexpr (kPairTileElementBytes<v> == 4) {
        pair.tiled[v] = __uint_as_float(word[v][i % 8]);
      } else {
        const u32 two = word[v][i % 8 / 2];
        using TileElement = typename PairTileElementOf<v>::type;
        const u16 one = static_cast<u16>(i % 2 == 0 ? two : two >> 16);
        if constexpr (kIsInteger<TileElement>) {
          pair.tiled[v] = __int_as_float(static_cast<short>(one));
        } else {
          pair.tiled[v] = to_real(TileElement{one});
        }
      }
      put_into<v + 1>(pair, i);
    }
  }
};

/// What one warp needs of the tiles of one use: the 16 rows of its fragment, which are queries, or keys when transposed. An element stands in the piece of 16
/// bytes whose number in its chunk is (key / elements in a piece) ^ (query % 8).
template <bool transposed, int kRows, int kColumns>
struct TiledView {
  u32 address[kPairTileSlots];  // of the row that this lane names, in the first blocks; or of the lane's first element

  /// first: the warp's first row of the tile.
  FOVEAL_DEVICE TiledView(const PairTiles<kRows, kColumns>& tiles, u32 use, int first) { find<0>(tiles, use, first); }

  /// Registers 8 n .. 8 n + 7: 16 columns of the fragment. By all lanes.
  FOVEAL_DEVICE TiledValues load(int n) const {
    TiledValues values;
    load_from<0>(values, n);
    return values;
  }

 private:
  template <int v>
  FOVEAL_DEVICE void find(const PairTiles<kRows, kColumns>& tiles, u32 use, int first) {
    if constexpr (v < kPairTiles) {
      const u32 tile = tiles.template tile<v>(use);
      if constexpr (kPairTileElementBytes<v> == 4) {
        const int row = lane_id() / 4, column = 2 * (lane_id() % 4);  // of the fragment
        if constexpr (transposed) {
          const int key = first + row;
          address[v] = tile + key / 32 * kRows * kChunkRowBytes + column * kChunkRowBytes + (((key % 32 / 4) ^ column) * 16 + key % 4 * 4);
        } else {
          address[v] = tile + (first + row) * kChunkRowBytes + (((column / 4) ^ row) * 16 + column % 4 * 4);
        }
      } else {
        const int along = lane_id() % 8, second = lane_id() / 8 & 1, third = lane_id() / 16;
        if constexpr (transposed) {
          const int key = first + 8 * second, query = 8 * third + along;
          address[v] =
              tile + key / kChunkColumns * kRows * kChunkRowBytes + query * kChunkRowBytes + ((key % kChunkColumns / 8) ^ along) * 16;
        } else {
          address[v] = tile + (first + 8 * second + along) * kChunkRowBytes + (third ^ along) * 16;
        }
      }
      find<v + 1>(tiles, use, first);
    }
  }

  template <int v>
  FOVEAL_DEVICE void load_from(TiledValues& values, int n) const {
    if constexpr (v < kPairTiles) {
      if constexpr (kPairTileElementBytes<v> == 4) {
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
          const int block = i / 4, half = fragment_row(i);  // 8 columns; 8 rows
          u32 *one = &values.word[v][i], *two = &values.word[v][i + 1];
          if constexpr (transposed) {
            const u32 at = (address[v] ^ 32 * half) + (16 * n + 8 * block) * kChunkRowBytes;
            *one = load_word(at);
            *two = load_word((at ^ 16) + kChunkRowBytes);
          } else {
            const u32 at = (address[v] ^ (n % 2 * 64 + 32 * block)) + n / 2 * kRows * kChunkRowBytes + 8 * half * kChunkRowBytes;
            float neighbours[2];
            load_pair(at, neighbours);
            *one = __float_as_uint(neighbours[0]);
            *two = __float_as_uint(neighbours[1]);
          }
        }
      } else {
        u32 block[4];
        load_blocks<transposed>(
            block, transposed ? address[v] + 16 * n * kChunkRowBytes : (address[v] ^ (n % 4 * 32)) + n / 4 * kRows * kChunkRowBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) values.word[v][i] = block[i];
      }
      load_from<v + 1>(values, n);
    }
  }
};

}  // namespace foveal::device
