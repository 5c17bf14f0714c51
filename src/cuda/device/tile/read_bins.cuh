#pragma once
// Gradients of reads whose indices follow no line of a tile, in shared memory: a 32-bit integer for each element of the parameter that pairs of one head can touch,
// as additions of integers are atomic there and their sums do not depend on an order. Terms are multiples of a unit, 2^-20 to 2^-22 of the largest of a tile, which
// all warps learn at a barrier; where a tile's are too large for the unit, the sums go to the exact sums (score/exact_sum.cuh) and begin anew with a larger one. An
// addition that wraps around sends 2^32 units to the exact sums, so that no sum is ever too large. Few elements have several copies, for one lane in so many
// each: lanes would wait for each other otherwise. Of many elements (kBinWindow) a window follows the tiles; tiles that reach further go to the exact sums.
#include "ptx/mbarrier.cuh"
#include "ptx/warp.cuh"
#include "score/read_targets.cuh"

namespace foveal::device {

constexpr bool is_binned(int r) { return kCollectsTerms && kBinCopies[r] > 0; }
constexpr int binned_before(int end) {
  int count = 0;
  for (int r = 0; r < end; ++r) count += is_binned(r);
  return count;
}
constexpr int bins_before(int end) {
  int count = 0;
  for (int r = 0; r < end; ++r) count += is_binned(r) ? kBinEntries[r] * kBinCopies[r] : 0;
  return count;
}
constexpr int range_words_before(int end) {
  int words = 0;
  for (int r = 0; r < end; ++r) words += is_binned(r) ? (kBinWindow[r] ? 3 : 1) : 0;
  return words;
}
constexpr int kBinnedReads = binned_before(kReads);
constexpr int kBinSlots = kBinnedReads > 0 ? kBinnedReads : 1;

FOVEAL_DEVICE u32 add_to_bin(u32 shared, int value) {
  u32 before;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(shared), "r"(value) : "memory");
  return before;
}

/// The largest size of two, or NaN.
FOVEAL_DEVICE float larger_size(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(fabsf(b)));
  return larger;
}

/// What a unit is: a power of two, by the exponent (that of fp32) above the largest term that it is for. Terms are rounded by an addition.
struct BinUnit {
  static constexpr int kBits = 22, kLeast = 24, kSpare = 2, kNotFinite = 255;
  int top = 0;  // 0: none yet

  FOVEAL_DEVICE static int exponent(u32 largest) { return largest >> 23; }
  FOVEAL_DEVICE bool holds(u32 largest) const { return exponent(largest) <= top; }
  FOVEAL_DEVICE void grow(u32 largest) { top = min(max(exponent(largest) + kSpare, kLeast), kNotFinite - 1); }
  FOVEAL_DEVICE float value() const { return __int_as_float((top + 1 - kBits) << 23); }
  FOVEAL_DEVICE float inverse() const { return __int_as_float((127 + 126 + kBits - top) << 23); }
  FOVEAL_DEVICE static int rounded(float term, float inverse) { return __float_as_int(fmaf(term, inverse, 12582912.0f)) - 0x4b400000; }
};

struct ReadBins {
  static constexpr int kBuffers = 3;  // of the largest terms: a tile's are written while those of the one before are read
  static constexpr int kBytes = 4 * (bins_before(kReads) + kBuffers * range_words_before(kReads));
  u32 address;

  template <int r>
  FOVEAL_DEVICE u32 bins() const {
    return address + 4 * bins_before(r);
  }
  /// What a tile says of itself, each word the largest of all threads'.
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

/// The parameter's element for a bin, from the first of the head's.
template <int r>
FOVEAL_DEVICE i64 element_of_bin(const AttentionArgs& args, int bin) {
  const auto& size = args.score.param[kReadParam[r]].size;
  constexpr bool kOne = (kBinDims[r] & (kBinDims[r] - 1)) == 0;
  i64 offset = 0, stride = 1;
#pragma unroll
  for (int d = kReadRank[r] - 1; d >= 0; --d) {
    if (kBinDims[r] >> d & 1) {
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
  for (int d = 0; d < kReadRank[r]; ++d)
    element = element * args.score.param[kReadParam[r]].size[d] + (kBinDims[r] >> d & 1 ? 0 : index[d]);
  return element;
}

}  // namespace foveal::device
