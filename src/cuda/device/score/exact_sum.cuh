#pragma once
// Order-independent sums: integer bins by exponent, updated by integer atomics. Each of `elements` sums has kWords 64-bit words: kWords - 1
// bins, each kBinBits wide in exponent, and a word of flags for infinities and NaN. An fp32 term takes at most 24 + kBinBits - 1 bits of
// its bin, so 2^(40 - kBinBits) terms fit without overflow; nothing is rounded. The host chooses narrow bins where an element might get
// more than 2^24 terms (exact_sum_bin_bits in launch/attention_args.h). Kernels guarantee in return that an element gets at most a term for
// each pair that touches it, and, where the read's index is the same along the rows, columns or diagonals of a tile, at most a term for
// each such line of a tile of kExactSumTile by kExactSumTile pairs, or larger. Equal bins of neighbouring elements are adjacent: these are
// often updated together, by terms of similar size.
#include "base.cuh"

namespace foveal::device {

template <int kBinBits>
struct ExactSum {
  static_assert(kBinBits == 8 || kBinBits == 16, "two widths are in use");
  static constexpr int kWords = 256 / kBinBits;
  static constexpr int kBins = kWords - 1;
  static constexpr int kLowestExponent = -149;  ///< bin 0 counts the smallest fp32 denormal

  FOVEAL_DEVICE static void add(u64* words, i64 elements, i64 element, float x) {
    const u32 bits = __float_as_uint(x);
    const int exponent = int(bits >> 23 & 255);
    const u32 fraction = bits & 0x7fffff;
    if ((bits & 0x7fffffff) == 0) return;
    const int place = exponent == 0 ? 0 : exponent - 1;  // of the fraction's lowest bit
    if (exponent == 255 || place >= kBins * kBinBits) {
      const u64 flag = exponent == 255 && fraction != 0 ? 4 : (bits >> 31 ? 2 : 1);
      atomicOr(words + kBins * elements + element, flag);
      return;
    }
    const u64 value = u64(exponent == 0 ? fraction : fraction | 0x800000) << place % kBinBits;
    atomicAdd(words + place / kBinBits * elements + element, bits >> 31 ? u64(0) - value : value);
  }

  FOVEAL_DEVICE static void add(u64* words, i64 elements, i64 element, double x) {
    const float high = float(x);
    add(words, elements, element, high);
    if (!isfinite(high)) return;
    const float low = float(x - high);
    if (low == 0) return;
    add(words, elements, element, low);
    const float lowest = float(x - high - low);
    if (lowest != 0) add(words, elements, element, lowest);
  }

  FOVEAL_DEVICE static double value(const u64* words, i64 elements, i64 element) {
    const u64 flags = words[kBins * elements + element];
    if (flags) return (flags & 4) || flags == 3 ? __longlong_as_double(0x7ff8000000000000ll) : flags == 1 ? 1.0 / 0.0 : -1.0 / 0.0;
    double sum = 0;
    for (int bin = kBins - 1; bin >= 0; --bin) sum += ldexp(double(i64(words[bin * elements + element])), kLowestExponent + bin * kBinBits);
    return sum;
  }
};

}  // namespace foveal::device
