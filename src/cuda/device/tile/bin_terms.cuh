#pragma once
// Terms of binned reads (tile/read_bins.cuh): from a warp's tile to bins in shared memory, and from bins to exact sums.
#include "tile/read_bins.cuh"
#include "tile/tile_pairs.cuh"

namespace foveal::device {

constexpr u32 kBinsBarrier = 2, kBinThreads = 256;  // the two consumer warpgroups

/// Sums over all tiles of a warp's keys and one query head.
struct ReadSums {
  float uniform[kReadSlots];
  float column[kReadSlots][2];  // the thread's two keys
  BinUnit unit[kBinSlots];
  float largest[kBinSlots];             // of the thread's terms in a tile
  int window[kBinSlots];                // first bin of the window
  int low[kBinSlots], high[kBinSlots];  // range of the thread's bins in a tile

  FOVEAL_DEVICE void clear() {
#pragma unroll
    for (int r = 0; r < kReadSlots; ++r) uniform[r] = column[r][0] = column[r][1] = 0;
#pragma unroll
    for (int b = 0; b < kBinSlots; ++b) {
      unit[b].top = 0;
      largest[b] = 0;
      window[b] = 0;
      low[b] = 0x7fffffff;
      high[b] = 0;
    }
  }
};

struct BinnedPairs : TilePairs {
  /// Publishes the magnitude and the range of a tile's binned terms. A barrier must follow.
  template <int r = 0>
  FOVEAL_DEVICE void publish_ranges(ReadSums& sums, ReadBins bins, u32 tile) const {
    if constexpr (r < kReads) {
      if constexpr (is_binned(r)) {
        constexpr int b = binned_before(r);
        bins.publish_max(bins.range_word<r>(tile, 0), __float_as_uint(sums.largest[b]));
        sums.largest[b] = 0;
        if constexpr (kRead[r].bin_is_window) {
          bins.publish_max(bins.range_word<r>(tile, 1), 0x7fffffff - sums.low[b]);
          bins.publish_max(bins.range_word<r>(tile, 2), sums.high[b]);
          sums.low[b] = 0x7fffffff;
          sums.high[b] = 0;
        }
      }
      publish_ranges<r + 1>(sums, bins, tile);
    }
  }

  /// After that barrier.
  template <int r = 0>
  FOVEAL_DEVICE void add_to_bins(const float (&gradients)[kBlockQ / 2], const EarlyTerms& early, ReadSums& sums, ReadBins bins,
                                 u32 tile) const {
    if constexpr (r < kReads) {
      if constexpr (is_binned(r)) {
        constexpr int b = binned_before(r), kRangeWords = kRead[r].bin_is_window ? 3 : 1;
        BinUnit& unit = sums.unit[b];
        const u32 largest = uniform(load_word(bins.range_word<r>(tile, 0)));
        bool inside = BinUnit::exponent(largest) != BinUnit::kNotFinite, moves = false;
        int low = 0, high = 0;
        if constexpr (kRead[r].bin_is_window) {
          low = 0x7fffffff - uniform(load_word(bins.range_word<r>(tile, 1)));
          high = uniform(load_word(bins.range_word<r>(tile, 2)));
          inside = inside && high - low < kRead[r].bin_entries;
          moves = low < sums.window[b] || high >= sums.window[b] + kRead[r].bin_entries;
        }
        if (threadIdx.x == 128) {
          for (int word = 0; word < kRangeWords; ++word) store_word(bins.range_word<r>(tile + 2, word), 0);
        }
        if (!inside) {
          add_whole<r>(gradients, early);
        } else if (largest != 0) {
          if (unit.top != 0 && (moves || !unit.holds(largest))) {
            flush_bins<r>(unit, sums.window[b], bins);
            named_barrier_sync(kBinsBarrier, kBinThreads);
          }
          if (moves) sums.window[b] = max(0, low - (kRead[r].bin_entries - 1 - (high - low)) / 2);
          if (!unit.holds(largest)) unit.grow(largest);
          add_read_to_bins<r>(gradients, early, unit, sums.window[b], bins);
        }
      }
      add_to_bins<r + 1>(gradients, early, sums, bins, tile);
    }
  }

  static constexpr int kBinsAtOnce = 16;
  template <int r>
  FOVEAL_DEVICE void add_read_to_bins(const float (&gradients)[kBlockQ / 2], const EarlyTerms& early, BinUnit unit, int window,
                                      ReadBins bins) const {
    const float inverse = unit.inverse();
    const u32 first = bins.bins<r>() + 4 * (lane_id() % kRead[r].bin_copies);
#pragma unroll
    for (int i = 0; i < kBlockQ / 2; i += kBinsAtOnce) {
      int bin[kBinsAtOnce], value[kBinsAtOnce];
      u32 before[kBinsAtOnce];
      u32 wraps = 0;  // in the highest bit
#pragma unroll
      for (int j = 0; j < kBinsAtOnce; ++j) {
        bin[j] = read_bin<r>(0.0f, pair(i + j), args.score);
        value[j] = BinUnit::rounded(term<r, true>(gradients[i + j], early, i + j), inverse);
        before[j] = add_to_bin(first + 4 * kRead[r].bin_copies * (kRead[r].bin_is_window ? bin[j] - window : bin[j]), value[j]);
      }
#pragma unroll
      for (int j = 0; j < kBinsAtOnce; ++j) wraps |= wrap(before[j], value[j]);
      if (__any_sync(~0u, int(wraps) < 0)) {
        float carries[kBinsAtOnce];
#pragma unroll
        for (int j = 0; j < kBinsAtOnce; ++j) {
          const float carry = (value[j] < 0 ? -0x1p32f : 0x1p32f) * unit.value();
          carries[j] = int(wrap(before[j], value[j])) < 0 ? carry : 0.0f;
        }
        add_to_elements<r>(bin, carries);
      }
    }
  }
  /// Did an integer addition wrap around? In the highest bit.
  FOVEAL_DEVICE static u32 wrap(u32 before, u32 value) { return (before ^ (before + value)) & (value ^ (before + value)); }

  /// Adds terms directly to exact sums: some are not finite, or beyond the window.
  template <int r>
  FOVEAL_DEVICE void add_whole(const float (&gradients)[kBlockQ / 2], const EarlyTerms& early) const {
#pragma unroll
    for (int i = 0; i < kBlockQ / 2; i += kBinsAtOnce) {
      int bin[kBinsAtOnce];
      float terms[kBinsAtOnce];
#pragma unroll
      for (int j = 0; j < kBinsAtOnce; ++j) {
        bin[j] = read_bin<r>(0.0f, pair(i + j), args.score);
        terms[j] = term<r, true>(gradients[i + j], early, i + j);
      }
      if constexpr (kRead[r].bin_is_window) {
        const i64 first = first_element_of_bins<r>(args, base);
#pragma unroll
        for (int j = 0; j < kBinsAtOnce; ++j)
          add_to_element<r>(args, first + element_of_bin<r>(args, bin[j]), sum_of_read<r>(args, base, terms[j]));
      } else {
        add_to_elements<r>(bin, terms);
      }
    }
  }

  /// To the exact sums. Rare, hence a rolled loop.
  template <int r>
  FOVEAL_DEVICE void add_to_elements(const int (&bin)[kBinsAtOnce], const float (&terms)[kBinsAtOnce]) const {
    int bins[kBinsAtOnce];
    float sums[kBinsAtOnce];
#pragma unroll
    for (int j = 0; j < kBinsAtOnce; ++j) {
      bins[j] = bin[j];
      sums[j] = terms[j];
    }
    const i64 first = first_element_of_bins<r>(args, base);
#pragma unroll 1
    for (int j = 0; j < kBinsAtOnce; ++j)
      add_to_element<r>(args, first + element_of_bin<r>(args, bins[j]), sum_of_read<r>(args, base, sums[j]));
  }

  /// Moves bins to the exact sums; by all warps that added to them, after a barrier.
  template <int r>
  FOVEAL_DEVICE void flush_bins(BinUnit unit, int window, ReadBins bins) const {
    constexpr int kCount = kRead[r].bin_entries * kRead[r].bin_copies;
    const i64 first_element = first_element_of_bins<r>(args, base);
    const float value = unit.value();
#pragma unroll 1
    for (int first = 0; first < kCount; first += kBinThreads) {
      const int i = first + threadIdx.x - 128;
      const u32 at = bins.bins<r>() + 4 * i;
      const int sum = i < kCount ? static_cast<int>(load_word(at)) : 0;
      if (sum != 0) store_word(at, 0);
      if (__any_sync(~0u, sum != 0))
        add_warp_to_read<r>(args, first_element + element_of_bin<r>(args, window + i / kRead[r].bin_copies),
                            sum_of_read<r>(args, base, static_cast<float>(sum) * value));
    }
  }

  template <int r = 0>
  FOVEAL_DEVICE void flush_all_bins(const ReadSums& sums, ReadBins bins) const {
    if constexpr (r < kReads) {
      if constexpr (is_binned(r)) {
        if (sums.unit[binned_before(r)].top != 0) flush_bins<r>(sums.unit[binned_before(r)], sums.window[binned_before(r)], bins);
      }
      flush_all_bins<r + 1>(sums, bins);
    }
  }
};

}  // namespace foveal::device
