#pragma once
// BlockOps for f16 by FMLAL and FMLAL2, which add products of f16 to fp32 and round once. Only dot has two operands of f16, so only dot
// uses them; its sums have the order, and so the bits, of the fp32 table. Weights stay fp32: rounded to f16, small gradients of scores
// would vanish. mix and spread are those of PlainOps.
//
//   dot     elements of a key's own row, eight in a register, by number against panel[d][lane]
//
// That needs no broadcasts, and keys are neither converted nor, where their rows are contiguous, copied.
#include <arm_neon.h>

#include "cpu/kernels/plain_ops.h"
#include "cpu/simd/neon.h"

namespace foveal::cpu {
namespace {

struct NeonF16Ops : PlainOps<NeonF32, 64, 64> {
  using Plain = PlainOps<NeonF32, 64, 64>;
  using Half = std::uint16_t;
  static constexpr int kLanes = kTileLanes, kPanelLaneBytes = sizeof(Half);

  static std::size_t panel_bytes(int dim) { return static_cast<std::size_t>(dim) * kLanes * sizeof(Half); }
  static std::size_t operand_bytes(int dim) {
    return Plain::operand_bytes(dim) + static_cast<std::size_t>(kBlockKv) * static_cast<std::size_t>(padded_dim(dim)) * sizeof(Half);
  }

  /// panel[d][lane]
  static void pack_panel(const LaneRows& rows, int dim, float sign, void* panel) {
    const uint16x8_t flip = vdupq_n_u16(sign < 0 ? 0x8000 : 0);
    for (int lane = 0; lane < rows.lanes; lane += 8) {
      for (int d = 0; d < dim; d += 8) {
        uint16x8_t x[8];
        for (int i = 0; i < 8; ++i) x[i] = rows.row[lane + i] ? load(rows.row[lane + i], rows.stride, d, dim - d) : vdupq_n_u16(0);
        transpose(x);
        Half* out = static_cast<Half*>(panel) + d * kLanes + lane;
        for (int i = 0; i < 8 && d + i < dim; ++i) vst1q_u16(out + i * kLanes, veorq_u16(x[i], flip));
      }
    }
  }

  static bool finite(const LaneRows& rows, int dim) {
    uint16x8_t largest = vdupq_n_u16(0);
    for (int lane = 0; lane < rows.lanes; ++lane)
      for (int d = 0; rows.row[lane] && d < dim; d += 8)
        largest = vmaxq_u16(largest, vandq_u16(load(rows.row[lane], rows.stride, d, dim - d), vdupq_n_u16(0x7fff)));
    return vmaxvq_u16(largest) < 0x7c00;
  }

  static Operand prepare(const KeyRows& rows, int keys, int dim, OperandUse use, void* scratch) {
    const std::int64_t ld = padded_dim(dim);
    Operand operand{rows.data, rows.row_stride, scratch, ld};
    const bool copied = use.dot && (rows.stride != 1 || rows_alias(rows, keys, dim));
    Half* copy = reinterpret_cast<Half*>(static_cast<char*>(scratch) + Plain::operand_bytes(dim));
    if (copied) operand.dot = copy, operand.dot_stride = ld;
    for (int key = 0; key < keys && (copied || use.mix); ++key) {
      const Half* row = static_cast<const Half*>(rows.data) + key * rows.row_stride;
      for (int d = 0; d < dim; d += 8) {
        const uint16x8_t x = load(row, rows.stride, d, dim - d);
        if (copied) vst1q_u16(copy + key * ld + d, x);
        if (use.mix) convert(x, static_cast<float*>(scratch) + key * ld + d);
      }
    }
    return operand;
  }

  static void dot(const Operand& keys, const void* panel, KeyRange range, int lanes, int dim, float* tile) {
    for (int lane = 0; lane < lanes; lane += 16) {
      const Half* rows = static_cast<const Half*>(keys.dot) + range.begin * keys.dot_stride;
      const Half* columns = static_cast<const Half*>(panel) + lane;
      float* out = tile + range.begin * kLanes + lane;
      int left = range.end - range.begin;
      const auto take = [&]<int kRows>() {
        register_tile<kRows>(rows, keys.dot_stride, columns, dim, out);
        rows += kRows * keys.dot_stride, out += kRows * kLanes, left -= kRows;
      };
      while (left >= 6) take.template operator()<6>();
      if (left >= 4) take.template operator()<4>();
      if (left >= 2) take.template operator()<2>();
      if (left >= 1) take.template operator()<1>();
    }
  }

 private:
  /// Eight elements from d on of a row, of which `count` exist; zeros beyond.
  static uint16x8_t load(const void* row, std::int64_t stride, int d, int count) {
    const Half* from = static_cast<const Half*>(row) + d * stride;
    if (stride == 1 && count >= 8) return vld1q_u16(from);
    alignas(16) Half x[8] = {};
    for (int i = 0; i < 8 && i < count; ++i) x[i] = from[i * stride];
    return vld1q_u16(x);
  }

  static void convert(uint16x8_t x, float* to) {
    const float16x8_t eight = vreinterpretq_f16_u16(x);
    vst1q_f32(to, vcvt_f32_f16(vget_low_f16(eight)));
    vst1q_f32(to + 4, vcvt_high_f32_f16(eight));
  }

  static void transpose(uint16x8_t (&x)[8]) {
    uint32x4_t pairs[8];
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = vreinterpretq_u32_u16(vtrn1q_u16(x[i], x[i + 1]));
      pairs[i + 1] = vreinterpretq_u32_u16(vtrn2q_u16(x[i], x[i + 1]));
    }
    uint64x2_t fours[8];
    for (int half = 0; half < 8; half += 4)
      for (int i = half; i < half + 2; ++i) {
        fours[i] = vreinterpretq_u64_u32(vtrn1q_u32(pairs[i], pairs[i + 2]));
        fours[i + 2] = vreinterpretq_u64_u32(vtrn2q_u32(pairs[i], pairs[i + 2]));
      }
    for (int i = 0; i < 4; ++i) {
      x[i] = vreinterpretq_u16_u64(vtrn1q_u64(fours[i], fours[i + 4]));
      x[i + 4] = vreinterpretq_u16_u64(vtrn2q_u64(fours[i], fours[i + 4]));
    }
  }

  static float16x8_t halves(const Half* p) { return vreinterpretq_f16_u16(vld1q_u16(p)); }

  /// acc[row][lanes] += element kElement of each row times these lanes of the panel; and so on to the last element of the eight.
  template <int kElement, int kRows>
  [[gnu::always_inline]] static void multiply(const float16x8_t (&rows)[kRows], const Half* panel, float32x4_t (&acc)[kRows][4]) {
#pragma GCC unroll 2
    for (int v = 0; v < 4; v += 2) {
      const float16x8_t lanes = halves(panel + 4 * v);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        acc[r][v] = vfmlalq_laneq_low_f16(acc[r][v], lanes, rows[r], kElement);
        acc[r][v + 1] = vfmlalq_laneq_high_f16(acc[r][v + 1], lanes, rows[r], kElement);
      }
      asm volatile("" ::: "memory");  // loads of later steps would need registers that are taken
    }
    if constexpr (kElement < 7) multiply<kElement + 1>(rows, panel + kLanes, acc);
  }

  /// 16 lanes: 6 keys take 24 registers for sums, 6 (of the lower 16) for elements by number, and 1 for lanes.
  template <int kRows>
  [[gnu::noinline]] static void register_tile(const Half* keys, std::int64_t stride, const Half* panel, int dim, float* tile) {
    float32x4_t acc[kRows][4];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) acc[r][v] = vdupq_n_f32(0);
    int d = 0;
    for (; d + 8 <= dim; d += 8, keys += 8, panel += 8 * kLanes) {
      float16x8_t rows[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) rows[r] = halves(keys + r * stride);
      multiply<0>(rows, panel, acc);
    }
    for (; d < dim; ++d, ++keys, panel += kLanes) {
      const float16x8_t low = halves(panel), high = halves(panel + 8);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const float16x8_t x = vreinterpretq_f16_u16(vld1q_dup_u16(keys + r * stride));
        acc[r][0] = vfmlalq_low_f16(acc[r][0], low, x), acc[r][1] = vfmlalq_high_f16(acc[r][1], low, x);
        acc[r][2] = vfmlalq_low_f16(acc[r][2], high, x), acc[r][3] = vfmlalq_high_f16(acc[r][3], high, x);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) vst1q_f32(tile + r * kLanes + 4 * v, acc[r][v]);
  }
};

}  // namespace
}  // namespace foveal::cpu
