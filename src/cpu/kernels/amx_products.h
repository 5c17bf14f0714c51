#pragma once
// The three products by AMX: matrices of 16 x 16 tiles, multiplied by AmxMultiply. `Tiles` is the hardware or, in tests, a scalar model of
// it. Right operands are those of VDPBF16PS (pairs along the reduced index); left operands must be contiguous along the reduced index:
//
//   dot     keys[key][d]                 times panel[d / 2][lane]      rows of keys, copied where they cannot be loaded as tiles
//   mix     columns[d][key]              times weights[key / 2][lane]  the block transposed
//   spread  weights[key][lane]           times rows[lane / 2][d]
//
// Everything is padded with zeros to multiples of 16 rows and 32 reduced elements.
#include "cpu/kernels/amx_multiply.h"
#include "cpu/kernels/avx512_bf16.h"
#include "cpu/kernels/block_ops.h"

namespace foveal::cpu {
namespace {

template <class Tiles>
struct AmxProducts {
  // Half of the keys that suit VDPBF16PS: a score tile of 16 KB stays in L1 between the products. Tile stores that miss L1 cost most.
  static constexpr int kStep = 32, kBlockKv = 64, kKeyMultiple = 32;
  static constexpr int kSpreadRows = 16;
  static constexpr int kLanes = 64;

  static void enter() { Tiles::enter(); }
  static void leave() { Tiles::leave(); }

  static std::size_t operand_bytes(int dim) { return 2 * copy_bytes(dim); }

  static Operand prepare(const KeyRows& rows, int keys, int dim, OperandUse use, void* scratch) {
    Operand operand;
    const BlockRow row{rows, keys};
    if (use.dot) {
      // Tile loads are slow from rows a multiple of 2 KB apart.
      const bool in_place = rows.stride == 1 && dim % kStep == 0 && keys % 16 == 0 && (rows.row_stride * 2) % 2048 != 0;
      operand = {rows.data, rows.row_stride, nullptr, 0};
      if (!in_place) {
        operand = {scratch, round_up(dim, kStep), nullptr, 0};
        copy_rows_bf16(round_up(keys, 16), dim, row, rows.stride, static_cast<std::uint16_t*>(scratch), operand.dot_stride);
      }
    }
    if (use.mix) {
      Pair* columns = reinterpret_cast<Pair*>(static_cast<char*>(scratch) + copy_bytes(dim));
      operand.mix = columns;
      operand.mix_stride = kBlockKv;
      for (int key = 0; key < keys; key += 32) {
        for (int d = 0; d < dim; d += 32) {
          __m512i low[16], high[16];
          load_pairs_of_rows(key, d, dim, row, rows.stride, low, high);
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
  /// One of the two copies: a block of keys by rows, or by columns.
  static std::size_t copy_bytes(int dim) { return static_cast<std::size_t>(kBlockKv) * round_up(dim, 32) * 2; }

  [[gnu::noinline]] static void multiply(const AmxProduct& product) {
    Tiles tiles;
    AmxMultiply<Tiles> run(tiles);
    run(product);
    run.finish();
  }
};

}  // namespace
}  // namespace foveal::cpu
