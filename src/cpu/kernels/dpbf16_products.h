#pragma once
// The three products by VDPBF16PS: a pair of bf16 of one operand is broadcast against 16 pairs of the other, and both products of a pair
// are added to an fp32. All three are one loop over a register tile of up to 6 x 64; only the strides of the broadcasts differ.
//
//   dot     broadcast (d, d + 1) of a key's own row              against panel[d / 2][lane]
//   mix     broadcast (key, key + 1) of column d, pairs of rows  against weights[key / 2][lane]
//   spread  broadcast (lane, lane + 1) of a key's weights        against rows[lane / 2][d]
#include "cpu/kernels/avx512_bf16.h"
#include "cpu/kernels/block_ops.h"

namespace foveal::cpu {
namespace {

struct Dpbf16Products {
  static constexpr int kStep = 2, kBlockKv = 96, kKeyMultiple = 6;
  static constexpr int kSpreadRows = 1;  ///< rows of keys that spread writes at once
  static constexpr int kLanes = 64;
  static constexpr void (*enter)() = nullptr;
  static constexpr void (*leave)() = nullptr;

  static std::size_t operand_bytes(int dim) { return 2 * copy_bytes(dim); }

  /// dot reads rows in place where they are contiguous, of even length, and not a multiple of 2 KB apart (they would map to a few sets of
  /// L1). Pairs of rows for mix are always packed.
  static Operand prepare(const KeyRows& rows, int keys, int dim, OperandUse use, void* scratch) {
    Operand operand;
    const BlockRow row{rows, keys};
    if (use.dot) {
      const bool in_place = rows.stride == 1 && dim % 2 == 0 && (rows.row_stride * 2) % 2048 != 0;
      operand.dot = in_place ? rows.data : scratch;
      operand.dot_stride = in_place ? rows.row_stride : round_up(dim, 32);
      if (!in_place) copy_rows_bf16(keys, dim, row, rows.stride, static_cast<std::uint16_t*>(scratch), operand.dot_stride);
    }
    if (use.mix) {
      Pair* pairs = reinterpret_cast<Pair*>(static_cast<char*>(scratch) + copy_bytes(dim));
      operand.mix = pairs;
      operand.mix_stride = padded_dim(dim);
      for (int key = 0; key < keys; key += 2)
        pack_pairs(row(key), row(key + 1), rows.stride, dim, padded_dim(dim), pairs + key / 2 * padded_dim(dim));
    }
    return operand;
  }

  static void dot(const Operand& keys, const void* panel, KeyRange range, int lanes, int dim, float* tile) {
    const char* rows = static_cast<const char*>(keys.dot) + range.begin * keys.dot_stride * 2;
    multiply<false>(
        {rows, keys.dot_stride * 2, 4, static_cast<const Pair*>(panel), kLanes, (dim + 1) / 2, tile + range.begin * kLanes, kLanes},
        range.end - range.begin, lanes);
  }

  static void mix(const Operand& keys, const void* weights, KeyRange range, int lanes, int dim, float* acc) {
    const char* columns = static_cast<const char*>(keys.mix) + range.begin / 2 * keys.mix_stride * 4;
    const Pair* pairs = static_cast<const Pair*>(weights) + range.begin / 2 * kLanes;
    const int pairs_of_keys = (range.end - range.begin + 1) / 2;  // the partner of an odd last key has no weight
    multiply<true>({columns, 4, keys.mix_stride * 4, pairs, kLanes, pairs_of_keys, acc, kLanes}, dim, lanes);
  }

  static void spread(const void* weights, const void* rows, KeyRange range, int lanes, int dim, float* acc) {
    const int padded = padded_dim(dim);
    const char* keys = static_cast<const char*>(weights) + range.begin * kLanes * 2;
    for (int d = 0; d < padded; d += 64) {
      multiply<true>({keys, kLanes * 2, 4, static_cast<const Pair*>(rows) + d, padded, lanes / 2, acc + range.begin * padded + d, padded},
                     range.end - range.begin, padded - d < 64 ? padded - d : 64);
    }
  }

 private:
  static std::size_t copy_bytes(int dim) { return static_cast<std::size_t>(kBlockKv) * round_up(dim, 32) * 2; }

  /// c[row][16 * vectors] (+)= sum over steps of broadcast a[row][step] * b[step][16 * vectors]. Strides of a in bytes, of b in pairs, of c
  /// in floats.
  struct Product {
    const char* a;
    std::int64_t a_row, a_step;
    const Pair* b;
    std::int64_t b_step;
    int steps;
    float* c;
    std::int64_t c_row;
  };

  static __m512i broadcast(const char* pair) {
    int word;
    __builtin_memcpy(&word, pair, sizeof word);
    return _mm512_set1_epi32(word);
  }

  template <bool kAccumulate, int kRows, int kVectors>
  [[gnu::noinline]] static void register_tile(const Product& p) {
    __m512 acc[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = kAccumulate ? _mm512_load_ps(p.c + r * p.c_row + 16 * v) : _mm512_setzero_ps();
    }
    const char* a = p.a;
    const Pair* b = p.b;
#pragma GCC unroll 4
    for (int step = 0; step < p.steps; ++step) {
      __m512i column[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) column[v] = _mm512_load_si512(b + 16 * v);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512i x = broadcast(a + r * p.a_row);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          acc[r][v] = _mm512_dpbf16_ps(acc[r][v], reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(column[v]));
        }
      }
      a += p.a_step;
      b += p.b_step;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) _mm512_store_ps(p.c + r * p.c_row + 16 * v, acc[r][v]);
    }
  }

  template <bool kAccumulate, int kRows, int kVectors>
  static void rows_tile(const Product& p, int rows) {
    if (rows == kRows) {
      register_tile<kAccumulate, kRows, kVectors>(p);
    } else if constexpr (kRows > 1) {
      rows_tile<kAccumulate, kRows - 1, kVectors>(p, rows);
    }
  }

  /// Splits rows into register tiles of nearly equal height.
  template <bool kAccumulate, int kVectors>
  static void all_rows(Product p, int rows) {
    constexpr int kMostRows = kVectors == 4 ? 6 : 8;
    for (int tiles = (rows + kMostRows - 1) / kMostRows; tiles > 0; --tiles) {
      const int height = (rows + tiles - 1) / tiles;
      rows_tile<kAccumulate, kMostRows, kVectors>(p, height);
      p.a += height * p.a_row;
      p.c += height * p.c_row;
      rows -= height;
    }
  }

  template <bool kAccumulate>
  static void multiply(const Product& p, int rows, int columns) {
    switch (columns / 16) {
      case 1:
        return all_rows<kAccumulate, 1>(p, rows);
      case 2:
        return all_rows<kAccumulate, 2>(p, rows);
      case 3:
        return all_rows<kAccumulate, 3>(p, rows);
      default:
        return all_rows<kAccumulate, 4>(p, rows);
    }
  }
};

}  // namespace
}  // namespace foveal::cpu
