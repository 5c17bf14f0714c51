#pragma once
// Offsets that are products of a row value and a column value, as extra columns of Q and K: the tensor cores add them to the scores, at no
// instruction a pair. A 24-bit value is a sum of three bf16 parts; of the nine products of two such sums the six largest leave a relative
// error below 2^-23. Rows and keys with a value that is not tame (line_values.cuh) have zeros there, and their offsets are added pair by
// pair.
//
// Columns of keys are in shared memory as [key][16], one k-step after the other, 32-byte swizzle; those of queries are in registers as the
// A operand.
#include "element.cuh"
#include "layout/sm90.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"
#include "score/score.cuh"
#include "tile/line_values.cuh"

namespace foveal::device {

constexpr int kOffsetSteps = kOffsetsAreColumns ? offset_steps(kOffsets) : 0;  ///< of 16 columns
constexpr int kOffsetSlots = kOffsets > 0 ? kOffsets : 1;
constexpr int kStepSlots = kOffsetSteps > 0 ? kOffsetSteps : 1;

/// All columns of a row or key, two in a word. Products of (row, key) parts: 0 0, 0 1, 1 0, 0 2, 2 0, 1 1.
struct PackedColumns {
  u32 word[8 * kStepSlots] = {};

  template <bool of_row, int o = 0>
  FOVEAL_DEVICE void put(const float (&value)[kOffsetSlots], bool tame) {
    if constexpr (o < kOffsets) {
      float part[3], rest = tame ? value[o] : 0.0f;
#pragma unroll
      for (float& p : part) {
        p = __uint_as_float(pack(bf16{}, 0, rest));
        rest -= p;
      }
      u32* const to = word + kColumnsOfOffset / 2 * o;
      to[0] = of_row ? pack(bf16{}, part[0], part[0]) : pack(bf16{}, part[0], part[1]);
      to[1] = of_row ? pack(bf16{}, part[1], part[0]) : pack(bf16{}, part[0], part[2]);
      to[2] = of_row ? pack(bf16{}, part[2], part[1]) : to[0];
      put<of_row, o + 1>(value, tame);
    }
  }
};

/// For the thread's two rows.
struct RowColumns {
  u32 operand[kStepSlots][4];
  bool large[2];  // some value is not tame

  /// exact: all offsets are added pair by pair.
  FOVEAL_DEVICE void put(int r, const float (&value)[kOffsetSlots], bool exact) {
    bool tame = !exact;
#pragma unroll
    for (int o = 0; o < kOffsets; ++o) tame = tame && is_tame(value[o]);
    large[r] = !tame;
    PackedColumns columns;
    columns.put<true>(value, tame);
#pragma unroll
    for (int s = 0; s < kOffsetSteps; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32 word = 0;
#pragma unroll
        for (int t = 0; t < 4; ++t) word = lane_id() % 4 == t ? columns.word[8 * s + 4 * half + t] : word;
        operand[s][2 * half + r] = word;
      }
    }
  }
};

/// Like MatrixDescriptor, for rows of 32 bytes with 32-byte swizzle.
struct NarrowDescriptor {
  u32 low;
  FOVEAL_DEVICE u64 bits() const { return (static_cast<u64>((256u >> 4) | (3u << 30)) << 32) | low; }
};

/// For kKeys keys.
template <int kKeys>
struct KeyColumns {
  static constexpr int kStepBytes = offset_step_bytes(kKeys), kBytes = kOffsetSteps * kStepBytes;
  u32 address;

  /// By the warp that has written the column values.
  template <int kRows>
  FOVEAL_DEVICE void fill(LineTile<kRows, kKeys> lines) const {
    for (int key = lane_id(); key < kKeys; key += kWarp) {
      float value[kOffsetSlots];
      bool tame = true;
#pragma unroll
      for (int o = 0; o < kOffsets; ++o) {
        value[o] = lines.walk(kOffset[o].walk)[key];
        tame = tame && is_tame(value[o]);
      }
      PackedColumns columns;
      columns.put<false>(value, tame);
#pragma unroll
      for (int half = 0; half < 2 * kOffsetSteps; ++half) {
        const u32* words = columns.word + 4 * half;
        const u32 to = address + half / 2 * kStepBytes + 32 * key + ((half % 2) ^ (key / 4 % 2)) * 16;
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                     : "memory");
      }
    }
    fence_async_proxy();
  }

  /// acc[64 x kKeys] = rows keys^T.
  FOVEAL_DEVICE void multiply(float (&acc)[kKeys / 2], const RowColumns& rows) const {
    const u32 first = uniform(address);
#pragma unroll
    for (int s = 0; s < kOffsetSteps; ++s) {
      const u32(&a)[4] = rows.operand[s];
      const NarrowDescriptor keys{(((first + s * kStepBytes) & 0x3ffffu) >> 4) | (1u << 16)};
      Wgmma<kKeys, true>::template run<Major::k>(acc, a[0], a[1], a[2], a[3], keys, s > 0);
    }
  }
};

}  // namespace foveal::device
