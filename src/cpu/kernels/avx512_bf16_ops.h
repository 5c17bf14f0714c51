#pragma once
// BlockOps for bf16 on AVX-512: packing, and the softmax between the products. `Products` supplies the three products and the block sizes:
// Dpbf16Products (VDPBF16PS, dpbf16_products.h) or AmxProducts (AMX, amx_products.h). Products::kStep is the number of elements that one
// step of a product reduces; panels, rows and weights are padded to it with zeros.
//
// Weights are probabilities or score gradients rounded to bf16, in the two forms that the products reduce over:
//   for mix, which reduces over keys      Pair[key / 2][lane]
//   for spread, which reduces over lanes  bf16[key][lane]
// An operation that writes weights leaves no second copy of them in the fp32 tile, whose contents are then unspecified.
#include "cpu/kernels/avx512_exp2.h"
#include "cpu/kernels/ops_table.h"
#include "cpu/kernels/softmax.h"
#include "cpu/simd/avx512.h"

namespace foveal::cpu {
namespace {

constexpr int kTileLanes = 64;

inline __m512 load(const float* tile, int key, int lane) { return _mm512_load_ps(tile + key * kTileLanes + lane); }
inline void store(float* tile, int key, int lane, __m512 x) { _mm512_store_ps(tile + key * kTileLanes + lane, x); }

/// Writes the weights of one tile.
struct WeightWriter {
  Pair* mix;
  std::uint16_t* spread;

  explicit WeightWriter(const Weights& weights)
      : mix(static_cast<Pair*>(weights.mix)), spread(static_cast<std::uint16_t*>(weights.spread)) {}
  bool any() const { return mix || spread; }
  /// 16 lanes of two consecutive keys, the first one even.
  void put_mix(int key, int lane, __m512 even, __m512 odd) const {
    _mm512_store_si512(mix + key / 2 * kTileLanes + lane, round_pairs(even, odd));
  }
  /// The rest of the last step that mix reduces over, and of the last rows that spread writes.
  template <class Products>
  void zero_tail(const KeyRange& range, int lane) const {
    for (int key = round_up(range.end, 2); mix && key < round_up(range.end, Products::kStep); key += 2) {
      _mm512_store_si512(mix + key / 2 * kTileLanes + lane, _mm512_setzero_si512());
    }
    for (int key = range.end; spread && lane % 32 == 0 && key < round_up(range.end, Products::kSpreadRows); ++key) {
      _mm512_store_si512(spread + key * kTileLanes + lane, _mm512_setzero_si512());
    }
  }
  /// 32 lanes of one key.
  void put_spread(int key, int lane, __m512 low, __m512 high) const {
    _mm512_store_si512(spread + key * kTileLanes + lane, round_bf16(low, high));
  }
};

/// Masks of the lanes whose range holds a row.
struct LaneLimits {
  __m512i first, last;

  LaneLimits(const LaneRanges& ranges, int lane)
      : first(_mm512_loadu_si512(ranges.first + lane)), last(_mm512_loadu_si512(ranges.last + lane)) {}
  __mmask16 keeps(int row) const {
    const __m512i r = _mm512_set1_epi32(row);
    return _mm512_mask_cmplt_epi32_mask(_mm512_cmple_epi32_mask(first, r), r, last);
  }
};

template <bool kRanges>
struct Lanes;
template <>
struct Lanes<false> {
  Lanes(const LaneRanges&, int) {}
  __m512 keep(int, __m512 x) const { return x; }
  __m512 keep(int, __m512 x, __m512) const { return x; }
};
template <>
struct Lanes<true> : LaneLimits {
  using LaneLimits::LaneLimits;
  __m512 keep(int row, __m512 x) const { return _mm512_maskz_mov_ps(keeps(row), x); }
  __m512 keep(int row, __m512 x, __m512 otherwise) const { return _mm512_mask_mov_ps(otherwise, keeps(row), x); }
};

template <class Products>
struct Bf16Ops : Products, LaneOps<Avx512F32, kTileLanes> {
  static constexpr int kStep = Products::kStep;
  static constexpr bool kWeightsInTile = false;

  static std::size_t panel_bytes(int dim) { return static_cast<std::size_t>(round_up(dim, kStep)) * kTileLanes * 2; }
  static std::size_t rows_bytes(int dim) { return static_cast<std::size_t>(kTileLanes) * padded_dim(dim) * 2; }

  /// panel[d / 2][lane] = pairs along d of every lane.
  static void pack_panel(const LaneRows& rows, int dim, float sign, void* panel) {
    Pair* out = static_cast<Pair*>(panel);
    const __m512i flip = _mm512_set1_epi32(sign < 0 ? static_cast<int>(0x80008000u) : 0);
    const int steps = round_up(dim, kStep) / 2;
    for (int lane = 0; lane < rows.lanes; lane += 16) {
      for (int d = 0; d < dim; d += 32) {
        __m512i block[16];
        for (int i = 0; i < 16; ++i) {
          block[i] = lane + i < rows.lanes ? load_row_bf16(rows.row[lane + i], rows.stride, d, dim) : _mm512_setzero_si512();
        }
        transpose(block);
        const int count = steps - d / 2 < 16 ? steps - d / 2 : 16;
        for (int i = 0; i < count; ++i) _mm512_store_si512(out + (d / 2 + i) * kTileLanes + lane, _mm512_xor_si512(block[i], flip));
      }
    }
  }

  /// packed[lane / 2][d] = pairs along the lanes.
  static void pack_rows(const LaneRows& rows, int dim, void* packed) {
    Pair* out = static_cast<Pair*>(packed);
    const int padded = padded_dim(dim);
    for (int lane = 0; lane < round_up(rows.lanes, kStep < 16 ? 16 : kStep); lane += 2) {
      const void* even = lane < rows.lanes ? rows.row[lane] : nullptr;
      const void* odd = lane + 1 < rows.lanes ? rows.row[lane + 1] : nullptr;
      pack_pairs(even, odd, rows.stride, dim, padded, out + lane / 2 * padded);
    }
  }

  static bool finite(const LaneRows& rows, int dim) {
    FiniteBf16 finite;
    for (int lane = 0; lane < rows.lanes; ++lane) {
      for (int d = 0; d < dim; d += 32) finite.look(load_row_bf16(rows.row[lane], rows.stride, d, dim));
    }
    return finite.all();
  }

  static bool softmax(float* tile, KeyRange range, int lanes, const ScoreScale<float>& scale, LaneRanges ranges, const float* lane_max,
                      float* max, float* sum, float* factor, Weights weights) {
    return ranges.first ? softmax_of<true>(tile, range, lanes, scale, ranges, lane_max, max, sum, factor, weights)
                        : softmax_of<false>(tile, range, lanes, scale, ranges, lane_max, max, sum, factor, weights);
  }

  static void probabilities(float* tile, KeyRange range, int lanes, const ScoreScale<float>& scale, LaneRanges ranges, const float* far,
                            const float* lse, Weights weights) {
    if (far) subtract_far<Avx512F32>(tile, kTileLanes, range, lanes, scale.unit, far);
    const float natural = far ? scale.unit_natural : scale.natural;
    if (ranges.first) {
      probabilities_of<true>(tile, range, lanes, natural, ranges, lse, weights);
    } else {
      probabilities_of<false>(tile, range, lanes, natural, ranges, lse, weights);
    }
  }

  /// The gradient of a pair without probability is zero, whatever dp is.
  static void score_gradient(const float* p, float* dp, KeyRange range, int lanes, const float* delta, Weights weights) {
    for_pairs(range, lanes, weights, dp, [&](int key, int lane) {
      const __m512 x = load(p, key, lane);
      const __mmask16 any = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_UQ);
      return _mm512_maskz_mul_ps(any, x, _mm512_sub_ps(load(dp, key, lane), _mm512_load_ps(delta + lane)));
    });
  }

  static void round_weights(const float* tile, KeyRange range, int lanes, Weights weights) {
    for_pairs(range, lanes, weights, nullptr, [&](int key, int lane) { return load(tile, key, lane); });
  }

  static constexpr BlockOps<float> table(const char* name, const PackedOps* packed = nullptr) {
    BlockOps<float> table = table_of<Bf16Ops>(name);
    table.enter = Products::enter, table.leave = Products::leave;
    table.packed = packed;
    return table;
  }

 private:
  /// value(key, lane) gives 16 lanes, written to the weights, or to the tile when there are none.
  template <class Value>
  static void for_pairs(const KeyRange& range, int lanes, const Weights& weights, float* tile, const Value& value) {
    const WeightWriter writer(weights);
    for (int lane = 0; lane < lanes; lane += 32) {
      const bool two = lane + 16 < lanes;
      for (int key = range.begin; key < range.end; key += 2) {
        const bool odd = key + 1 < range.end;
        const __m512 zero = _mm512_setzero_ps();
        const __m512 x00 = value(key, lane), x01 = two ? value(key, lane + 16) : zero;
        const __m512 x10 = odd ? value(key + 1, lane) : zero, x11 = two && odd ? value(key + 1, lane + 16) : zero;
        if (writer.mix) {
          writer.put_mix(key, lane, x00, x10);
          if (two) writer.put_mix(key, lane + 16, x01, x11);
        }
        if (writer.spread) {
          writer.put_spread(key, lane, x00, x01);
          if (odd) writer.put_spread(key + 1, lane, x10, x11);
        }
        if (!writer.any()) {
          store(tile, key, lane, x00);
          if (two) store(tile, key, lane + 16, x01);
          if (odd) store(tile, key + 1, lane, x10);
          if (two && odd) store(tile, key + 1, lane + 16, x11);
        }
      }
      writer.template zero_tail<Products>(range, lane);
      if (two) writer.template zero_tail<Products>(range, lane + 16);
    }
  }

  template <bool kRanges>
  static void probabilities_of(float* tile, KeyRange range, int lanes, float multiplier, LaneRanges ranges, const float* lse,
                               Weights weights) {
    const WeightWriter writer(weights);
    constexpr float log2e = 1.44269504f;
    const __m512 c = splat(multiplier * log2e);
    for (int lane = 0; lane < lanes; lane += 32) {
      const bool two = lane + 16 < lanes;
      const Lanes<kRanges> low(ranges, lane), high(ranges, two ? lane + 16 : lane);
      const __m512 lse_low = _mm512_mul_ps(_mm512_load_ps(lse + lane), splat(log2e));
      const __m512 lse_high = _mm512_mul_ps(_mm512_load_ps(lse + (two ? lane + 16 : lane)), splat(log2e));
      for (int key = range.begin; key < range.end; ++key) {
        const __m512 x = low.keep(key, exp2_bf16(_mm512_fmsub_ps(load(tile, key, lane), c, lse_low)));
        const __m512 y = two ? high.keep(key, exp2_bf16(_mm512_fmsub_ps(load(tile, key, lane + 16), c, lse_high))) : _mm512_setzero_ps();
        store(tile, key, lane, x);
        if (two) store(tile, key, lane + 16, y);
        if (writer.spread) writer.put_spread(key, lane, x, y);
      }
      writer.template zero_tail<Products>(range, lane);
    }
  }

  /// The largest score of each of 16 lanes.
  template <bool kRanges>
  static __m512 largest(const float* tile, KeyRange range, int lane, const Lanes<kRanges>& limits) {
    const __m512 none = splat(-__builtin_inff());
    __m512 a = none, b = none;
    int key = range.begin;
    for (; key + 2 <= range.end; key += 2) {
      a = _mm512_max_ps(a, limits.keep(key, load(tile, key, lane), none));
      b = _mm512_max_ps(b, limits.keep(key + 1, load(tile, key + 1, lane), none));
    }
    if (key < range.end) a = _mm512_max_ps(a, limits.keep(key, load(tile, key, lane), none));
    return _mm512_max_ps(a, b);
  }

  template <bool kRanges>
  static bool softmax_of(float* tile, KeyRange range, int lanes, const ScoreScale<float>& units, LaneRanges ranges, const float* lane_max,
                         float* max, float* sum, float* factor, Weights weights) {
    const WeightWriter writer(weights);
    const float unit_log2 = units.unit_log2;
    const __m512 zero = _mm512_setzero_ps(), growth = splat(8.0f / unit_log2);
    bool grew = false;
    for (int lane = 0; lane < lanes; lane += 16) {
      const Lanes<kRanges> limits(ranges, lane);
      const __m512 top =
          lane_max ? _mm512_load_ps(lane_max + lane) : _mm512_mul_ps(largest<kRanges>(tile, range, lane, limits), splat(units.unit));
      const __m512 old = _mm512_load_ps(max + lane);
      const __mmask16 grows = _mm512_cmp_ps_mask(top, _mm512_add_ps(old, growth), _CMP_GT_OQ);
      const bool far = any_far<Avx512F32>(top);
      __m512 before = _mm512_load_ps(sum + lane), scale = splat(1.0f), m = old;
      if (grows) {
        m = _mm512_mask_mov_ps(old, grows, top);
        // A first maximum rescales nothing: 2^(-inf - m) is zero.
        const __m512 rise = far ? _mm512_mul_ps(_mm512_sub_ps(old, m), splat(unit_log2))
                                : _mm512_sub_ps(base2<Avx512F32>(old, unit_log2), base2<Avx512F32>(m, unit_log2));
        scale = _mm512_mask_mov_ps(scale, grows, Avx512F32::exp2(rise));
        before = _mm512_mul_ps(before, scale);
        _mm512_store_ps(max + lane, m);
        grew = true;
      }
      _mm512_store_ps(factor + lane, scale);
      __m512 shift = base2<Avx512F32>(m, unit_log2);
      if (far) {
        alignas(64) float shifts[16];
        _mm512_store_ps(shifts, shift);
        subtract_far_maxima<Avx512F32>(tile + lane, kTileLanes, range, 16, units.unit, max + lane, shifts);
        shift = _mm512_load_ps(shifts);
      }
      const __m512 c = splat(far ? unit_log2 : units.log2);
      // Accurate to fp32 although the weights are bf16, because lse is fp32. For the same reason a block is summed before it is added.
      const auto p = [&](int key) { return limits.keep(key, Avx512F32::exp2(_mm512_fmsub_ps(load(tile, key, lane), c, shift))); };
      __m512 total = zero, more = zero;
      for (int key = range.begin; key < range.end; key += 2) {
        const bool odd = key + 1 < range.end;
        const __m512 x = p(key), y = odd ? p(key + 1) : zero;
        total = _mm512_add_ps(total, x);
        more = _mm512_add_ps(more, y);
        if (writer.mix) {
          writer.put_mix(key, lane, x, y);
        } else {
          store(tile, key, lane, x);
          if (odd) store(tile, key + 1, lane, y);
        }
      }
      _mm512_store_ps(sum + lane, _mm512_add_ps(before, _mm512_add_ps(total, more)));
      writer.template zero_tail<Products>(range, lane);
    }
    return grew;
  }
};

}  // namespace
}  // namespace foveal::cpu
