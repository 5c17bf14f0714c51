#pragma once
// Pair reads (one parameter element for each pair) that are loaded by TMA: a pipeline of tiles [query][chunk of keys], 128-byte swizzle,
// and their loads into fragments. 16-bit elements come by ldmatrix and stay packed until use; 32-bit ones one by one or as neighbours,
// 8-bit ones as neighbours.
#include "element.cuh"
#include "score/score.cuh"
#include "tile/fragment.cuh"
#include "tile/tma_tile.cuh"

namespace foveal::device {

template <int v>
constexpr int kPairTileElementBytes = sizeof(typename PairTileElementOf<v>::type);
template <int v>
constexpr PairTileShape kPairTileShape{kPairTileElementBytes<v>, kPairTile[v].stairs, kPairTile[v].keys};
template <int v>
constexpr int pair_tile_columns(int keys) {
  return kPairTileShape<v>.loaded(keys);
}
/// Bytes of the tiles of reads before `end`, for kColumns keys.
template <int end, int kRows, int kColumns>
constexpr int pair_tiles_before() {
  if constexpr (end == 0) {
    return 0;
  } else {
    return pair_tiles_before<end - 1, kRows, kColumns>() + kPairTileShape<end - 1>.bytes(kRows, kColumns);
  }
}

/// First column of an aligned chunk that contains element `place` and those that follow.
template <int v>
FOVEAL_DEVICE int first_stair(int place) {
  return place & ~(16 / kPairTileElementBytes<v> - 1);
}

/// Tiles of `rows` queries by `columns` keys, one for each read. stages: at least 1 if there are kPairTiles.
template <int rows, int columns, int stages>
struct PairTiles {
  static constexpr int kRows = rows, kColumns = columns, kStages = kPairTiles > 0 ? stages : 1;
  static constexpr int kStageBytes = pair_tiles_before<kPairTiles, kRows, kColumns>();
  static constexpr PairPipelineShape kShape{kStages, kStageBytes};
  u32 base;
  Pipeline<kStages> pipeline;

  template <int v>
  FOVEAL_DEVICE u32 tile(u32 use) const {
    return base + pipeline.index(use) * kStageBytes + pair_tiles_before<v, kRows, kColumns>();
  }

  /// By the loading thread; first: the tile's first pair, which exists.
  FOVEAL_DEVICE void load(const Sm90Args& args, const Position& first, u32 use) const {
    if constexpr (kPairTiles > 0) {
      pipeline.producer_acquire(use);
      mbarrier_arrive_expect_bytes(pipeline.full_barrier(use), kStageBytes);
      load_from<0>(args, first, use);
    }
  }

 private:
  template <int v>
  FOVEAL_DEVICE void load_from(const Sm90Args& args, const Position& first, u32 use) const {
    constexpr int kChunk = kChunkRowBytes / kPairTileElementBytes<v>;  // columns
    int place[4] = {};
    pair_tile_place<v>(first, args.attention.score, place);
    if constexpr (kPairTile[v].stairs) place[0] = first_stair<v>(place[0]);
#pragma unroll
    for (int chunk = 0; chunk < chunk_count(pair_tile_columns<v>(kColumns), kChunk); ++chunk) {
      if constexpr (kPairTile[v].wraps) {
        Position at = first;
        at.kv += chunk * kChunk;
        pair_tile_place<v>(at, args.attention.score, place);
        place[0] -= chunk * kChunk;
      }
      tma_load(tile<v>(use) + chunk * kRows * kChunkRowBytes, args.pairs[v], pipeline.full_barrier(use), place[0] + chunk * kChunk,
               place[1], place[2], place[3]);
    }
    if constexpr (v + 1 < kPairTiles) load_from<v + 1>(args, first, use);
  }
};

/// Values of eight fragment registers: pairs of 8-bit or 16-bit elements, or single 32-bit ones.
struct TiledValues {
  u32 word[kPairTileSlots][8];

  /// The value of register i.
  template <int v = 0>
  FOVEAL_DEVICE void put_into(Pair& pair, int i) const {
    if constexpr (v < kPairTiles) {
      if constexpr (kPairTileElementBytes<v> == 4) {
        pair.tiled[v] = __uint_as_float(word[v][i % 8]);
      } else {
        const u32 two = word[v][i % 8 / 2];
        using TileElement = typename PairTileElementOf<v>::type;
        const u16 one = static_cast<u16>(i % 2 == 0 ? two : two >> 16);
        if constexpr (kPairTileElementBytes<v> == 1) {
          pair.tiled[v] = __uint_as_float(widen_byte<kSame<TileElement, signed char>>(two, i % 2));
        } else if constexpr (kIsInteger<TileElement>) {
          pair.tiled[v] = __int_as_float(static_cast<short>(one));
        } else {
          pair.tiled[v] = to_real(TileElement{one});
        }
      }
      put_into<v + 1>(pair, i);
    }
  }
};

/// A warp's view of the tiles of one pipeline use: the 16 rows of its fragment, which are queries, or keys if transposed. An element is in
/// the 16-byte piece (key / elements in a piece) ^ (query % 8) of its chunk.
template <bool transposed, class Tiles>
struct TiledView {
  static constexpr int kRows = Tiles::kRows, kColumns = Tiles::kColumns;
  u32 address[kPairTileSlots];  // ldmatrix row address of this lane in the first blocks, or address of the lane's first element
  u32 second[kPairTileSlots];   // stairs: for the key eight further on

  /// first: the warp's first row of the tile; at: the pair of the tile's first row and column.
  FOVEAL_DEVICE TiledView(const Tiles& tiles, u32 use, int first, const Position& at, const ScoreArgs& args) {
    find<0>(tiles, use, first, at, args);
  }

  /// Registers 8 n .. 8 n + 7: 16 columns of the fragment. Warp-collective.
  FOVEAL_DEVICE TiledValues load(int n) const {
    TiledValues values;
    load_from<0>(values, n);
    return values;
  }

 private:
  /// The loaded column that a column of the tile reads.
  template <int v>
  FOVEAL_DEVICE static int loaded_column(int column) {
    return pair_tile_columns<v>(kColumns) < kColumns ? column % pair_tile_columns<v>(kColumns) : column;
  }
  template <int v>
  FOVEAL_DEVICE void find(const Tiles& tiles, u32 use, int first, const Position& at, const ScoreArgs& args) {
    if constexpr (v < kPairTiles) {
      const u32 tile = tiles.template tile<v>(use);
      if constexpr (kPairTile[v].stairs) {
        static_assert(transposed && kPairTileElementBytes<v> == 4, "stairs are read by rows of keys");
        const int column = 2 * (lane_id() % 4);
        const auto stair = [&](int key) {
          int place[4] = {}, of_first[4] = {};
          Position pair = at;
          pair_tile_place<v>(pair, args, of_first);
          pair.kv = min(at.kv + key, at.kv + kColumns - 1);
          pair_tile_place<v>(pair, args, place);
          const int element = place[0] - first_stair<v>(of_first[0]);
          return tile + column * kChunkRowBytes + (((element / 4) ^ column) * 16 + element % 4 * 4);
        };
        address[v] = stair(first + lane_id() / 4);
        second[v] = kPairTile[v].same ? address[v] : stair(first + lane_id() / 4 + 8);
      } else if constexpr (kPairTileElementBytes<v> == 4) {
        const int row = lane_id() / 4, column = 2 * (lane_id() % 4);  // of the fragment
        if constexpr (transposed) {
          const int key = loaded_column<v>(first + row);
          address[v] = tile + key / 32 * kRows * kChunkRowBytes + column * kChunkRowBytes + (((key % 32 / 4) ^ column) * 16 + key % 4 * 4);
        } else {
          address[v] = tile + (first + row) * kChunkRowBytes + (((column / 4) ^ row) * 16 + column % 4 * 4);
        }
      } else if constexpr (kPairTileElementBytes<v> == 1) {
        static_assert(!transposed, "elements of 8 bits are read by rows of queries");
        const int row = lane_id() / 4;
        address[v] = tile + (first + row) * kChunkRowBytes + row * 16 + 2 * (lane_id() % 4);
      } else {
        const int along = lane_id() % 8, next = lane_id() / 8 & 1, third = lane_id() / 16;
        if constexpr (transposed) {
          const int key = loaded_column<v>(first + 8 * next), query = 8 * third + along;
          address[v] =
              tile + key / kChunkColumns * kRows * kChunkRowBytes + query * kChunkRowBytes + ((key % kChunkColumns / 8) ^ along) * 16;
        } else {
          address[v] = tile + (first + 8 * next + along) * kChunkRowBytes + (third ^ along) * 16;
        }
      }
      find<v + 1>(tiles, use, first, at, args);
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
          if constexpr (kPairTile[v].same) {
            if (half == 1) {
              *one = values.word[v][i - 2];
              *two = values.word[v][i - 1];
              continue;
            }
          }
          if constexpr (transposed) {
            const u32 of_half = kPairTile[v].stairs ? (half ? second[v] : address[v]) : address[v] ^ 32 * half;
            const int blocks = (16 * n + 8 * block) * kChunkRowBytes;  // the swizzle is the same there
            *one = load_word(of_half + blocks);
            *two = load_word((of_half ^ 16) + (kChunkRowBytes + blocks));
          } else {
            const u32 at = (address[v] ^ (n % 2 * 64 + 32 * block)) + n / 2 * kRows * kChunkRowBytes + 8 * half * kChunkRowBytes;
            float neighbours[2];
            load_pair(at, neighbours);
            *one = __float_as_uint(neighbours[0]);
            *two = __float_as_uint(neighbours[1]);
          }
        }
      } else if constexpr (kPairTileElementBytes<v> == 1) {
        const u32 at = (address[v] ^ n % 8 * 16) + n / 8 * kRows * kChunkRowBytes;
#pragma unroll
        for (int i = 0; i < 8; i += 2) values.word[v][i / 2] = load_half(at + 8 * (i / 4) + 8 * fragment_row(i) * kChunkRowBytes);
      } else {
        u32 block[4];
        ldmatrix<transposed>(
            block, transposed ? address[v] + 16 * n * kChunkRowBytes : (address[v] ^ (n % 4 * 32)) + n / 4 * kRows * kChunkRowBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) values.word[v][i] = block[i];
      }
      load_from<v + 1>(values, n);
    }
  }
};

}  // namespace foveal::device
