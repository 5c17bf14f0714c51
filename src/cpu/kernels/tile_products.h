#pragma once
// The three products by AMX: matrices of 16 x 16 tiles multiplied by TileMultiply, over a tile machine so that tests can run the same code
// on a model. The right-hand sides are what VDPBF16PS takes too (pairs along the reduced index); the left-hand sides must have the reduced
// index contiguous:
//
//   dot     keys[key][d]                 times panel[d / 2][lane]      rows of keys, copied where they cannot be loaded as tiles
//   mix     columns[d][key]              times weights[key / 2][lane]  the block transposed
//   spread  weights[key][lane]           times rows[lane / 2][d]
//
// Everything is padded with zeros to multiples of 16 rows and 32 reduced elements.
#include "cpu/kernels/bf16_vectors.h"
#include "cpu/kernels/block_ops.h"
#include "cpu/kernels/tile_multiply.h"

namespace foveal::cpu {
namespace {

template <class Tiles>
struct TileProducts {
  // Half of the keys that VDPBF16PS takes best: a score tile of 16 KB stays in the first-level cache between the products, and stores to
  // one that does not are what slows tiles down most.
  static constexpr int kStep = 32, kBlockKv = 64, kKeyMultiple = 32;
  static constexpr int kSpreadRows = 16;
  static constexpr int kLanes = 64;

  static void enter() { Tiles::enter(); }
  static void leave() { Tiles::leave(); }

  static std::size_t operand_bytes(int dim) { return 2 * copy_bytes(dim); }

  static Operand prepare(const KeyRows& rows, int keys, int dim, bool for_dot, bool for_mix, void* scratch) {
    Operand operand;
    const auto row = [&](int key) { return key < keys ? static_cast<const std::uint16_t*>(rows.data) + key * rows.row_stride : nullptr; };
    if (for_dot) {
      // Tiles load badly from rows a multiple of 2 KB apart.
      const bool as_they_are = rows.stride == 1 && dim % kStep == 0 && keys % 16 == 0 && (rows.row_stride * 2) % 2048 != 0;
      operand = {rows.data, rows.row_stride, nullptr, 0};
      if (!as_they_are) {
        std::uint16_t* copy = static_cast<std::uint16_t*>(scratch);
        operand = {copy, round_up(dim, kStep), nullptr, 0};
        for (int key = 0; key < round_up(keys, 16); ++key) {
          for (int d = 0; d < dim; d += 32)
            _mm512_store_si512(copy + key * operand.dot_stride + d, load_row_bf16(row(key), rows.stride, d, dim));
        }
      }
    }
    if (for_mix) {
      Pair* columns = reinterpret_cast<Pair*>(static_cast<char*>(scratch) + copy_bytes(dim));
      operand.mix = columns;
      operand.mix_stride = kBlockKv;
      for (int key = 0; key < keys; key += 32) {
        for (int d = 0; d < dim; d += 32) {
          __m512i low[16], high[16];
          for (int i = 0; i < 16; ++i) {
            const int even = key + 2 * i;
            interleave_rows(load_row_bf16(row(even), rows.stride, d, dim), load_row_bf16(row(even + 1), rows.stride, d, dim), &low[i],
                            &high[i]);
          }
          transpose(low);
          transpose(high);
          for (int i = 0; i < 16; ++i) {
            _mm512_store_si512(columns + (d + i) * (kBlockKv / 2) + key / 2, low[i]);
            _mm512_store_si512(columns + (d + 16 + i) * (kBlockKv / 2) + key / 2, high[i]);
          }
        }
      }
    }
    return operand;
  }

  static void dot(const Operand& keys, const void* panel, KeyRange range, int lanes, int dim, float* tile) {
    multiply({.c = tile + range.begin * kLanes,
              .a = static_cast<const std::uint16_t*>(keys.dot) + range.begin * keys.dot_stride,
              .b = panel,
              .c_stride = kLanes * 4,
              .a_stride = keys.dot_stride * 2,
              .b_stride = kLanes * 4,
              .rows = round_up(range.end - range.begin, 16),
              .columns = lanes,
              .steps = round_up(dim, kStep) / kStep,
              .accumulate = false});
  }

  static void mix(const Operand& keys, const void* weights, KeyRange range, int lanes, int dim, float* acc) {
    multiply({.c = acc,
              .a = static_cast<const std::uint16_t*>(keys.mix) + range.begin,
              .b = static_cast<const Pair*>(weights) + range.begin / 2 * kLanes,
              .c_stride = kLanes * 4,
              .a_stride = keys.mix_stride * 2,
              .b_stride = kLanes * 4,
              .rows = round_up(dim, 16),
              .columns = lanes,
              .steps = round_up(range.end - range.begin, kStep) / kStep,
              .accumulate = true});
  }

  static void spread(const void* weights, const void* rows, KeyRange range, int lanes, int dim, float* acc) {
    const int padded = padded_dim(dim);
    multiply({.c = acc + range.begin * padded,
              .a = static_cast<const std::uint16_t*>(weights) + range.begin * kLanes,
              .b = rows,
              .c_stride = padded * 4,
              .a_stride = kLanes * 2,
              .b_stride = padded * 4,
              .rows = round_up(range.end - range.begin, kSpreadRows),
              .columns = padded,
              .steps = round_up(lanes, kStep) / kStep,
              .accumulate = true});
  }

 private:
  /// One of the two scratch areas: a block of keys by rows, or by columns.
  static std::size_t copy_bytes(int dim) { return static_cast<std::size_t>(kBlockKv) * round_up(dim, 32) * 2; }

  [[gnu::noinline]] static void multiply(const TileProduct& product) {
    Tiles tiles;
    TileMultiply<Tiles> run(tiles);
    run(product);
    run.finish();
  }
};

}  // namespace
}  // namespace foveal::cpu
