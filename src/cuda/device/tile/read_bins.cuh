#pragma once
// Gradients of reads whose indices follow no line of a tile: a 32-bit integer bin in shared memory for each parameter element that a head's
// pairs can touch, as integer atomics are native there and independent of order. Terms are rounded to a unit, 2^-20 to 2^-22 of the largest
// in a tile, which all warps learn at a barrier; if a tile's terms are too large for the unit, bins are flushed to the exact sums
// (score/exact_sum.cuh) and restart with a larger unit. An addition that wraps around sends 2^32 units to the exact sums. Few elements are
// replicated over lanes to avoid conflicts; of many (bin_is_window) a window follows the tiles, and terms beyond it go to the exact sums.
#include "ptx/mbarrier.cuh"
#include "ptx/warp.cuh"
#include "score/read_targets.cuh"
#include "tile/backward_family.cuh"

namespace foveal::device {

constexpr bool is_binned(int r) { return kConfig.collects_terms() && kRead[r].bin_copies > 0; }
constexpr int binned_before(int end) {
  int count = 0;
  for (int r = 0; r < end; ++r) count += is_binned(r);
  return count;
}
constexpr int bins_before(int end) {
  int count = 0;
  for (int r = 0; r < end; ++r) count += is_binned(r) ? kRead[r].bin_entries * kRead[r].bin_copies : 0;
  return count;
}
constexpr int range_words_before(int end) {
  int words = 0;
  for (int r = 0; r < end; ++r) words += is_binned(r) ? (kRead[r].bin_is_window ? 3 : 1) : 0;
  return words;
}
constexpr int kBinnedReads = binned_before(kReads);
constexpr int kBinSlots = kBinnedReads > 0 ? kBinnedReads : 1;

FOVEAL_DEVICE u32 add_to_bin(u32 shared, int value) {
  u32 before;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(shared), "r"(value) : "memory");
  return before;
}

/// The larger magnitude, or NaN.
FOVEAL_DEVICE float larger_size(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(fabsf(b)));
  return larger;
}

/// The unit is a power of two, given by the (fp32) exponent `top` above the largest term that it can hold. Terms are rounded by an
/// addition.
struct BinUnit {
  static constexpr int kBits = 22, kLeast = 24, kSpare = 2, kNotFinite = 255;
  int top = 0;  // 0: no unit yet

  FOVEAL_DEVICE static int exponent(u32 largest) { return largest >> 23; }
  FOVEAL_DEVICE bool holds(u32 largest) const { return exponent(largest) <= top; }
  FOVEAL_DEVICE void grow(u32 largest) { top = min(max(exponent(largest) + kSpare, kLeast), kNotFinite - 1); }
  FOVEAL_DEVICE float value() const { return __int_as_float((top + 1 - kBits) << 23); }
  FOVEAL_DEVICE float inverse() const { return __int_as_float((127 + 126 + kBits - top) << 23); }
  FOVEAL_DEVICE static int rounded(float term, float inverse) { return __float_as_int(fmaf(term, inverse, 12582912.0f)) - 0x4b400000; }
};

struct ReadBins {
  static constexpr int kBuffers = 3;  // triple buffer: a tile's ranges are written while the previous one's are read
  static constexpr int kBytes = 4 * (bins_before(kReads) + kBuffers * range_words_before(kReads));
  u32 address;

  template <int r>
  FOVEAL_DEVICE u32 bins() const {
    return address + 4 * bins_before(r);
  }
  /// A word about a tile: the maximum over all threads.
  template <int r>
  FOVEAL_DEVICE u32 range_word(u32 tile, int number) const {
    return address + 4 * (bins_before(kReads) + kBuffers * (range_words_before(r) + number) + tile % kBuffers);
  }
  FOVEAL_DEVICE static void publish_max(u32 word, u32 value) {
    const u32 of_warp = __reduce_max_sync(~0u, value);
    if (lane_id() == 0) asm volatile("red.shared.max.u32 [%0], %1;" ::"r"(word), "r"(of_warp) : "memory");
  }

  /// By all threads of the CTA.
  FOVEAL_DEVICE void clear() const {
    for (int i = threadIdx.x; i < kBytes / 4; i += blockDim.x) store_word(address + 4 * i, 0);
  }
};

/// Parameter element of a bin, relative to the head's first one.
template <int r>
FOVEAL_DEVICE i64 element_of_bin(const AttentionArgs& args, int bin) {
  const auto& size = args.score.param[kRead[r].param].size;
  constexpr bool kOne = (kRead[r].bin_dims & (kRead[r].bin_dims - 1)) == 0;
  i64 offset = 0, stride = 1;
#pragma unroll
  for (int d = kRead[r].rank - 1; d >= 0; --d) {
    if (kRead[r].bin_dims >> d & 1) {
      const int rest = kOne ? 0 : bin / size[d];
      offset += (bin - rest * size[d]) * stride;
      bin = rest;
    }
    stride *= size[d];
  }
  return offset;
}
template <int r>
FOVEAL_DEVICE i64 first_element_of_bins(const AttentionArgs& args, const Position& base) {
  int index[kMaxParamRank];
  read_index<r>(0.0f, base, args.score, index);
  i64 element = 0;
#pragma unroll
  for (int d = 0; d < kRead[r].rank; ++d)
    element = element * args.score.param[kRead[r].param].size[d] + (kRead[r].bin_dims >> d & 1 ? 0 : index[d]);
  return element;
}

}  // namespace foveal::device
