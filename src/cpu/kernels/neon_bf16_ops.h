#pragma once
// BlockOps for bf16 by BFMMLA: two rows of one operand times two of the other, four bf16 of each, added to 2 x 2 fp32. The result
// is that of two consecutive BFDOT, to the bit, in half the instructions. A last odd row uses BFDOT. Operands are stored as
// pairs, of which two steps are zipped in registers:
//
//   dot     broadcast (d, d + 1) of a key's row                  against panel[d / 2][lane]
//   mix     broadcast (key, key + 1) of column d, pairs of rows  against weights[key / 2][lane]
//   spread  broadcast (lane, lane + 1) of a key's weights        against rows[lane / 2][d]
//
// The softmax between the products is that of fp32; a separate pass rounds its results to weights while the tile is in L1:
//   for mix, which reduces over keys      Pair[key / 2][lane]
//   for spread, which reduces over lanes  bf16[key][lane]
#include <arm_neon.h>

#include "cpu/kernels/ops_table.h"
#include "cpu/kernels/softmax.h"
#include "cpu/simd/neon.h"

namespace foveal::cpu {
namespace {

struct NeonBf16Ops : LaneOps<NeonF32, 64> {
  using V = NeonF32;
  using Pair = std::uint32_t;  ///< two bf16, the lower half first in memory
  static constexpr int kLanes = kTileLanes, kBlockKv = 64, kKeyMultiple = 2;
  static constexpr bool kWeightsInTile = false;

  static std::size_t panel_bytes(int dim) { return static_cast<std::size_t>(round_up(dim, 2)) * kLanes * 2; }
  static std::size_t rows_bytes(int dim) { return static_cast<std::size_t>(kLanes) * static_cast<std::size_t>(padded_dim(dim)) * 2; }
  static std::size_t operand_bytes(int dim) { return 2 * copy_bytes(dim); }

  static std::uint16_t element(const void* row, std::int64_t stride, int d, int dim) {
    return row && d < dim ? static_cast<const std::uint16_t*>(row)[d * stride] : std::uint16_t{0};
  }
  static Pair pair(std::uint16_t low, std::uint16_t high) { return low | static_cast<Pair>(high) << 16; }

  /// panel[d / 2][lane] = pairs along d of every lane.
  static void pack_panel(const LaneRows& rows, int dim, float sign, void* panel) {
    Pair* out = static_cast<Pair*>(panel);
    const Pair flip = sign < 0 ? 0x80008000u : 0u;
    for (int lane = 0; lane < rows.lanes; ++lane)
      for (int d = 0; d < dim; d += 2)
        out[d / 2 * kLanes + lane] =
            pair(element(rows.row[lane], rows.stride, d, dim), element(rows.row[lane], rows.stride, d + 1, dim)) ^ flip;
  }

  /// packed[lane / 2][d] = pairs along the lanes.
  static void pack_rows(const LaneRows& rows, int dim, void* packed) {
    const int padded = padded_dim(dim);
    for (int lane = 0; lane < round_up(rows.lanes, 16); lane += 2)
      interleave(lane < rows.lanes ? rows.row[lane] : nullptr, lane + 1 < rows.lanes ? rows.row[lane + 1] : nullptr, rows.stride, dim,
                 static_cast<Pair*>(packed) + lane / 2 * padded);
  }

  static bool finite(const LaneRows& rows, int dim) { return finite_rows<V>(rows, dim); }

  /// dot reads contiguous rows of even length in place; pairs of rows for mix are always packed.
  static Operand prepare(const KeyRows& rows, int keys, int dim, OperandUse use, void* scratch) {
    Operand operand;
    const auto row = [&](int key) { return static_cast<const std::uint16_t*>(rows.data) + key * rows.row_stride; };
    if (use.dot && rows.stride == 1 && dim % 2 == 0) {
      operand.dot = rows.data, operand.dot_stride = rows.row_stride;
    } else if (use.dot) {
      std::uint16_t* copy = static_cast<std::uint16_t*>(scratch);
      operand.dot = copy, operand.dot_stride = padded_dim(dim);
      for (int key = 0; key < keys; ++key)
        for (int d = 0; d < padded_dim(dim); ++d) copy[key * operand.dot_stride + d] = element(row(key), rows.stride, d, dim);
    }
    if (use.mix) {
      Pair* pairs = reinterpret_cast<Pair*>(static_cast<char*>(scratch) + copy_bytes(dim));
      operand.mix = pairs, operand.mix_stride = padded_dim(dim);
      for (int key = 0; key < keys; key += 2)
        interleave(row(key), key + 1 < keys ? row(key + 1) : nullptr, rows.stride, dim, pairs + key / 2 * padded_dim(dim));
    }
    return operand;
  }

  static void dot(const Operand& keys, const void* panel, KeyRange range, int lanes, int dim, float* tile) {
    const char* rows = static_cast<const char*>(keys.dot) + range.begin * keys.dot_stride * 2;
    multiply<false, false>(
        {rows, keys.dot_stride * 2, 4, static_cast<const Pair*>(panel), kLanes, (dim + 1) / 2, tile + range.begin * kLanes, kLanes},
        range.end - range.begin, lanes);
  }
  static void mix(const Operand& keys, const void* weights, KeyRange range, int lanes, int dim, float* acc) {
    const char* columns = static_cast<const char*>(keys.mix) + range.begin / 2 * keys.mix_stride * 4;
    const Pair* pairs = static_cast<const Pair*>(weights) + range.begin / 2 * kLanes;
    multiply<true, true>({columns, 4, keys.mix_stride * 4, pairs, kLanes, (range.end - range.begin + 1) / 2, acc, kLanes}, dim, lanes);
  }
  static void spread(const void* weights, const void* rows, KeyRange range, int lanes, int dim, float* acc) {
    const int padded = padded_dim(dim);
    const char* keys = static_cast<const char*>(weights) + range.begin * kLanes * 2;
    multiply<true, false>({keys, kLanes * 2, 4, static_cast<const Pair*>(rows), padded, lanes / 2, acc + range.begin * padded, padded},
                          range.end - range.begin, padded);
  }

  static bool softmax(float* tile, KeyRange range, int lanes, const ScoreScale<float>& scale, LaneRanges ranges, const float* lane_max,
                      float* max, float* sum, float* factor, Weights weights) {
    const bool raised = cpu::softmax<V, WeightsInTile<V>>(tile, kLanes, range, lanes, scale, ranges, lane_max, max, sum, factor, Weights{});
    round_weights(tile, range, lanes, {weights.mix, nullptr});
    return raised;
  }
  static void probabilities(float* tile, KeyRange range, int lanes, const ScoreScale<float>& scale, LaneRanges ranges, const float* far,
                            const float* lse, Weights weights) {
    cpu::probabilities<V, WeightsInTile<V>>(tile, kLanes, range, lanes, scale, ranges, far, lse, Weights{});
    round_weights(tile, range, lanes, {nullptr, weights.spread});
  }
  static void score_gradient(const float* p, float* dp, KeyRange range, int lanes, const float* delta, Weights weights) {
    cpu::score_gradient<V, WeightsInTile<V>>(p, dp, kLanes, range, lanes, delta, Weights{});
    round_weights(dp, range, lanes, weights);
  }
  static void round_weights(const float* tile, KeyRange range, int lanes, Weights weights) {
    Pair* mix = static_cast<Pair*>(weights.mix);
    std::uint16_t* spread = static_cast<std::uint16_t*>(weights.spread);
    for (int key = range.begin; key < range.end && (mix || spread); key += 2) {
      const bool odd = key + 1 < range.end;
      for (int lane = 0; lane < lanes; lane += V::width) {
        const uint16x4_t x = rounded(V::load(tile + key * kLanes + lane));
        const uint16x4_t y = odd ? rounded(V::load(tile + (key + 1) * kLanes + lane)) : vdup_n_u16(0);
        if (mix) vst1q_u32(mix + key / 2 * kLanes + lane, vreinterpretq_u32_u16(vcombine_u16(vzip1_u16(x, y), vzip2_u16(x, y))));
        if (spread) vst1_u16(spread + key * kLanes + lane, x);
        if (spread && odd) vst1_u16(spread + (key + 1) * kLanes + lane, y);
      }
    }
  }

 private:
  static std::size_t copy_bytes(int dim) { return static_cast<std::size_t>(kBlockKv) * static_cast<std::size_t>(padded_dim(dim)) * 2; }

  static uint16x4_t rounded(float32x4_t x) { return vreinterpret_u16_bf16(vcvt_bf16_f32(x)); }

  /// pairs[d] = {a[d], b[d]}, zeros from dim to its padded size and for null rows.
  static void interleave(const void* a, const void* b, std::int64_t stride, int dim, Pair* pairs) {
    int d = 0;
    if (stride == 1 && a && b) {
      const std::uint16_t *x = static_cast<const std::uint16_t*>(a), *y = static_cast<const std::uint16_t*>(b);
      for (; d + 8 <= dim; d += 8) {
        const uint16x8_t low = vld1q_u16(x + d), high = vld1q_u16(y + d);
        vst1q_u32(pairs + d, vreinterpretq_u32_u16(vzip1q_u16(low, high)));
        vst1q_u32(pairs + d + 4, vreinterpretq_u32_u16(vzip2q_u16(low, high)));
      }
    }
    for (; d < padded_dim(dim); ++d) pairs[d] = pair(element(a, stride, d, dim), element(b, stride, d, dim));
  }

  /// c[row][columns] (+)= sum over steps of broadcast a[row][step] * b[step][columns]. Strides of a in bytes, of b in pairs, of c in
  /// floats.
  struct Product {
    const char* a;
    std::int64_t a_row, a_step;
    const Pair* b;
    std::int64_t b_step;
    int steps;
    float* c;
    std::int64_t c_row;
  };

  /// The pairs of two steps of row 0, then of row 1; zeros for a missing second step.
  /// kRowsTogether: rows are adjacent in memory, not steps.
  template <bool kRowsTogether, bool kWhole>
  static bfloat16x8_t two_rows(const char* a, std::int64_t row, std::int64_t step) {
    const auto pairs = [](const char* at) { return vreinterpret_u32_u8(vld1_u8(reinterpret_cast<const std::uint8_t*>(at))); };
    const auto word = [](const char* at) {
      Pair pair;
      __builtin_memcpy(&pair, at, sizeof pair);
      return vset_lane_u32(pair, vdup_n_u32(0), 0);
    };
    uint32x4_t words;
    if constexpr (kRowsTogether) {
      const uint32x2_t first = pairs(a), second = kWhole ? pairs(a + step) : vdup_n_u32(0);
      words = vcombine_u32(vzip1_u32(first, second), vzip2_u32(first, second));
    } else {
      words = kWhole ? vcombine_u32(pairs(a), pairs(a + row)) : vcombine_u32(word(a), word(a + row));
    }
    return vreinterpretq_bf16_u32(words);
  }

  /// Two steps, or with `kWhole` false the last one: acc[r][v] are the rows 2 r and 2 r + 1 of the columns 2 v and 2 v + 1.
  template <bool kRowsTogether, bool kWhole, int kRowPairs>
  static void multiply_step(const Product& p, const char* a, const Pair* b, float32x4_t (&acc)[kRowPairs][8]) {
    bfloat16x8_t rows[kRowPairs];
#pragma GCC unroll 4
    for (int r = 0; r < kRowPairs; ++r) rows[r] = two_rows<kRowsTogether, kWhole>(a + 2 * r * p.a_row, p.a_row, p.a_step);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const uint32x4_t first = vld1q_u32(b + 4 * v), second = kWhole ? vld1q_u32(b + p.b_step + 4 * v) : vdupq_n_u32(0);
      const bfloat16x8_t low = vreinterpretq_bf16_u32(vzip1q_u32(first, second)), high = vreinterpretq_bf16_u32(vzip2q_u32(first, second));
#pragma GCC unroll 4
      for (int r = 0; r < kRowPairs; ++r) {
        acc[r][2 * v] = vbfmmlaq_f32(acc[r][2 * v], rows[r], low);
        acc[r][2 * v + 1] = vbfmmlaq_f32(acc[r][2 * v + 1], rows[r], high);
      }
    }
  }

  /// 2 kRowPairs rows by 16 columns.
  template <bool kAccumulate, bool kRowsTogether, int kRowPairs>
  [[gnu::noinline]] static void matrix_tile(const Product& p) {
    float32x4_t acc[kRowPairs][8];
#pragma GCC unroll 4
    for (int r = 0; r < kRowPairs; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const float32x4_t top = kAccumulate ? V::load(p.c + 2 * r * p.c_row + 4 * v) : V::zero();
        const float32x4_t bottom = kAccumulate ? V::load(p.c + (2 * r + 1) * p.c_row + 4 * v) : V::zero();
        acc[r][2 * v] = vcombine_f32(vget_low_f32(top), vget_low_f32(bottom));
        acc[r][2 * v + 1] = vcombine_f32(vget_high_f32(top), vget_high_f32(bottom));
      }
    const char* a = p.a;
    const Pair* b = p.b;
    for (int step = 0; step + 2 <= p.steps; step += 2, a += 2 * p.a_step, b += 2 * p.b_step)
      multiply_step<kRowsTogether, true>(p, a, b, acc);
    if (p.steps % 2 != 0) multiply_step<kRowsTogether, false>(p, a, b, acc);
#pragma GCC unroll 4
    for (int r = 0; r < kRowPairs; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        V::store(p.c + 2 * r * p.c_row + 4 * v, vcombine_f32(vget_low_f32(acc[r][2 * v]), vget_low_f32(acc[r][2 * v + 1])));
        V::store(p.c + (2 * r + 1) * p.c_row + 4 * v, vcombine_f32(vget_high_f32(acc[r][2 * v]), vget_high_f32(acc[r][2 * v + 1])));
      }
  }

  static bfloat16x8_t broadcast(const char* at) {
    Pair word;
    __builtin_memcpy(&word, at, sizeof word);
    return vreinterpretq_bf16_u32(vdupq_n_u32(word));
  }

  /// One row by 16 columns.
  template <bool kAccumulate>
  [[gnu::noinline]] static void row_tile(const Product& p) {
    float32x4_t acc[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) acc[v] = kAccumulate ? V::load(p.c + 4 * v) : V::zero();
    const char* a = p.a;
    const Pair* b = p.b;
    for (int step = 0; step < p.steps; ++step, a += p.a_step, b += p.b_step) {
      const bfloat16x8_t x = broadcast(a);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) acc[v] = vbfdotq_f32(acc[v], x, vreinterpretq_bf16_u32(vld1q_u32(b + 4 * v)));
    }
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) V::store(p.c + 4 * v, acc[v]);
  }

  /// Columns in register tiles of 16, rows of 4 and then 2 and 1: 6 would not leave enough registers.
  template <bool kAccumulate, bool kRowsTogether>
  static void multiply(const Product& whole, int rows, int columns) {
    for (int column = 0; column < columns; column += 16) {
      Product p = whole;
      p.b += column, p.c += column;
      int left = rows;
      const auto take = [&](int count, void (*tile)(const Product&)) {
        tile(p);
        p.a += count * p.a_row, p.c += count * p.c_row, left -= count;
      };
      while (left >= 4) take(4, matrix_tile<kAccumulate, kRowsTogether, 2>);
      if (left >= 2) take(2, matrix_tile<kAccumulate, kRowsTogether, 1>);
      if (left >= 1) take(1, row_tile<kAccumulate>);
    }
  }
};

}  // namespace
}  // namespace foveal::cpu
