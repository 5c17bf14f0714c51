#pragma once
// wgmma accumulator fragments: which rows and columns a thread has, and how they leave the registers.
#include "element.cuh"
#include "ptx/warp.cuh"

namespace foveal::device {

/// Column of register i relative to the thread's first column, and which of its two rows.
constexpr int fragment_column(int i) { return 8 * (i >> 2) + (i & 1); }
constexpr int fragment_row(int i) { return (i >> 1) & 1; }

/// Rows of the thread: first, first + 8; columns start at first_column.
FOVEAL_DEVICE int fragment_first_row(int thread) { return 16 * (thread / 32 % 4) + thread % 32 / 4; }
FOVEAL_DEVICE int fragment_first_column(int thread) { return 2 * (thread % 4); }

/// An accumulator as the A operand of the next product.
template <class Element, int count>
FOVEAL_DEVICE void pack_fragment(u32 (&packed)[count / 2], const float (&values)[count]) {
#pragma unroll
  for (int i = 0; i < count / 2; ++i) packed[i] = pack(Element{}, values[2 * i], values[2 * i + 1]);
}

/// How many of `count` registers a rolled loop changes at a time: its text is that of one part. Parts begin at multiples of 4 registers, so
/// that fragment_column(begin + i) is 2 begin + fragment_column(i).
constexpr int registers_of_part(int count, int most = 16) { return most < 16 ? most : count % 16 == 0 ? 16 : 8; }

/// Moves registers so that the first ones are those behind the first `part`: none is indexed by a loop's variable.
template <int part, class T, int count>
FOVEAL_DEVICE void rotate(T (&registers)[count]) {
  T first[part];
#pragma unroll
  for (int i = 0; i < part; ++i) first[i] = registers[i];
#pragma unroll
  for (int i = 0; i < count; ++i) registers[i] = i + part < count ? registers[i + part] : first[i + part - count];
}

/// Calls change(part, i) for each part of the registers, those from i on, in a rolled loop: for code that would be long unrolled.
template <int count, class Change>
FOVEAL_DEVICE void in_parts(float (&registers)[count], Change&& change) {
  constexpr int kPart = registers_of_part(count);
  static_assert(count % kPart == 0);
#pragma unroll 1
  for (int i = 0; i < count; i += kPart) {
    float part[kPart];
#pragma unroll
    for (int j = 0; j < kPart; ++j) part[j] = registers[j];
    change(part, i);
#pragma unroll
    for (int j = 0; j < kPart; ++j) registers[j] = part[j];
    rotate<kPart>(registers);
  }
}

/// Is row `r` (0 or 1) of the thread's two rows infinite or NaN somewhere? May also report finite rows with very large neighbours.
template <int count>
FOVEAL_DEVICE bool has_nonfinite(const float (&acc)[count], int r) {
  float look[2] = {};
#pragma unroll
  for (int i = 2 * r; i < count; i += 4) look[i / 4 % 2] = fmaf(acc[i], acc[i + 1], look[i / 4 % 2]);
  return !(fabsf(look[0] + look[1]) < infinity());
}

/// Transposes 4 x 4 words within a quad: lane t gets word t of lanes 0..3.
FOVEAL_DEVICE void quad_transpose(u32 (&word)[4], int lane) {
  const bool odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {  // exchange with the neighbour
    const u32 sent = odd ? word[i] : word[i + 1];
    const u32 received = __shfl_xor_sync(~0u, sent, 1);
    if (odd)
      word[i] = received;
    else
      word[i + 1] = received;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // exchange with the other pair
    const u32 sent = high ? word[i] : word[i + 2];
    const u32 received = __shfl_xor_sync(~0u, sent, 2);
    if (high)
      word[i] = received;
    else
      word[i + 2] = received;
  }
}

/// Stores row `r` (0 or 1) of the thread's two rows, times `factor`, in 16 bits: each lane of the quad stores 8 consecutive columns at a
/// time. `columns`: how many exist, a multiple of 8.
template <class Element, int count>
FOVEAL_DEVICE void store_row(u16* row, const float (&acc)[count], int r, float factor, int columns, int lane) {
#pragma unroll
  for (int j = 0; j < count / 4; j += 4) {  // 4 blocks of 8 columns
    u32 word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * (j + i) + 2 * r;
      word[i] = at < count ? pack(Element{}, acc[at] * factor, acc[at + 1] * factor) : 0;
    }
    quad_transpose(word, lane);
    const int column = 8 * (j + lane % 4);
    if (column < columns) *reinterpret_cast<uint4*>(row + column) = make_uint4(word[0], word[1], word[2], word[3]);
  }
}

/// The same for zeros.
template <class Element>
FOVEAL_DEVICE void store_zero_row(u16* row, float factor, int columns, int lane) {
  const u32 word = pack(Element{}, 0 * factor, 0 * factor);
#pragma unroll 1
  for (int column = 8 * (lane % 4); column < columns; column += 32)
    *reinterpret_cast<uint4*>(row + column) = make_uint4(word, word, word, word);
}
FOVEAL_DEVICE void store_zero_row(float* row, float factor, int columns, int lane) {
#pragma unroll 1
  for (int column = 2 * (lane % 4); column < columns; column += 8)
    *reinterpret_cast<float2*>(row + column) = make_float2(0 * factor, 0 * factor);
}

/// Row `r` as by store_row, in fp32.
template <int count>
FOVEAL_DEVICE void store_row(float* row, const float (&acc)[count], int r, float factor, int columns, int lane) {
#pragma unroll
  for (int at = 2 * r; at < count; at += 4) {
    const int column = 2 * at - 4 * r + 2 * (lane % 4);
    if (column < columns) *reinterpret_cast<float2*>(row + column) = make_float2(acc[at] * factor, acc[at + 1] * factor);
  }
}

}  // namespace foveal::device
