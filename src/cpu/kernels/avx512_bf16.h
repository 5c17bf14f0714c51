#pragma once
// bf16 on AVX-512: vectors of floats, and of pairs of bf16 as 32-bit words. Only targets include this (see targets.cmake); the anonymous
// namespace gives each its own copy, compiled with its own flags.
#include <immintrin.h>

#include <cstdint>

#include "cpu/kernels/block_ops.h"

namespace foveal::cpu {
namespace {

/// Two bf16, the lower half first in memory: the unit of every bf16 product.
using Pair = std::uint32_t;

inline __m512 splat(float x) { return _mm512_set1_ps(x); }

/// 32 floats rounded to bf16 in order.
inline __m512i round_bf16(__m512 low, __m512 high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); }

/// Pair i = {even[i], odd[i]} rounded to bf16.
inline __m512i round_pairs(__m512 even, __m512 odd) {
  const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19,
                                              3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(interleave, round_bf16(even, odd));
}

/// Words 0..15 and 16..31 of {a[i], b[i]} from 32 bf16 of two rows.
inline void interleave_rows(__m512i a, __m512i b, __m512i* low, __m512i* high) {
  const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3,
                                         34, 2, 33, 1, 32, 0);
  *low = _mm512_permutex2var_epi16(a, first, b);
  *high = _mm512_permutex2var_epi16(a, _mm512_add_epi16(first, _mm512_set1_epi16(16)), b);
}

/// Transposes a 16 x 16 matrix of words.
inline void transpose(__m512i (&row)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    row[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    row[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    row[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    row[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(row[i], row[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(row[i], row[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(row[i + 8], row[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(row[i + 8], row[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    row[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    row[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    row[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    row[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

/// Elements d ... d + 31 of a row; zeros from dim on and for a null row.
inline __m512i load_row_bf16(const void* row, std::int64_t stride, int d, int dim) {
  if (!row) return _mm512_setzero_si512();
  const std::uint16_t* data = static_cast<const std::uint16_t*>(row);
  const int count = dim - d < 32 ? dim - d : 32;
  if (stride == 1) return _mm512_maskz_loadu_epi16(_cvtu32_mask32(count < 32 ? (1u << count) - 1 : ~0u), data + d);
  alignas(64) std::uint16_t gathered[32] = {};
  for (int i = 0; i < count; ++i) gathered[i] = data[(d + i) * stride];
  return _mm512_load_si512(gathered);
}

/// Row `key` of a block; null from `keys` on.
struct BlockRow {
  const KeyRows& rows;
  int keys;
  const void* operator()(int key) const {
    return key < keys ? static_cast<const std::uint16_t*>(rows.data) + key * rows.row_stride : nullptr;
  }
};

/// copy[i] = row(i), rows ld apart: zeros from dim to a multiple of 32.
template <class Row>
void copy_rows_bf16(int rows, int dim, const Row& row, std::int64_t stride, std::uint16_t* copy, std::int64_t ld) {
  for (int i = 0; i < rows; ++i)
    for (int d = 0; d < dim; d += 32) _mm512_store_si512(copy + i * ld + d, load_row_bf16(row(i), stride, d, dim));
}

/// Elements d ... d + 31 of 32 rows as 16 pairs of rows: low[i] has the first 16 elements of rows 2 i and 2 i + 1, high[i] the others.
template <class Row>
void load_pairs_of_rows(int first, int d, int dim, const Row& row, std::int64_t stride, __m512i (&low)[16], __m512i (&high)[16]) {
  for (int i = 0; i < 16; ++i)
    interleave_rows(load_row_bf16(row(first + 2 * i), stride, d, dim), load_row_bf16(row(first + 2 * i + 1), stride, d, dim), &low[i],
                    &high[i]);
}

/// Whether all bf16 that it has seen are finite.
class FiniteBf16 {
 public:
  void look(__m512i x) { largest_ = _mm512_max_epu16(largest_, _mm512_and_si512(x, _mm512_set1_epi16(0x7fff))); }
  bool all() const { return _mm512_cmpge_epu16_mask(largest_, _mm512_set1_epi16(0x7f80)) == 0; }

 private:
  __m512i largest_ = _mm512_setzero_si512();
};

/// Stores elements [d, min(d + 32, dim)) of a row.
inline void store_row_bf16(void* row, std::int64_t stride, int d, int dim, __m512i elements) {
  std::uint16_t* data = static_cast<std::uint16_t*>(row);
  const int count = dim - d < 32 ? dim - d : 32;
  if (stride == 1) return _mm512_mask_storeu_epi16(data + d, count < 32 ? (1u << count) - 1 : ~0u, elements);
  alignas(64) std::uint16_t scattered[32];
  _mm512_store_si512(scattered, elements);
  for (int i = 0; i < count; ++i) data[(d + i) * stride] = scattered[i];
}

/// Stores elements [d, min(d + 16, dim)) of an f32 row.
inline void store_row_f32(void* row, std::int64_t stride, int d, int dim, __m512 elements) {
  float* data = static_cast<float*>(row);
  const int count = dim - d < 16 ? dim - d : 16;
  if (stride == 1) return _mm512_mask_storeu_ps(data + d, static_cast<__mmask16>((1u << count) - 1), elements);
  alignas(64) float scattered[16];
  _mm512_store_ps(scattered, elements);
  for (int i = 0; i < count; ++i) data[(d + i) * stride] = scattered[i];
}

/// Stores elements [d, min(d + 32, dim)) of a row of out or of a gradient: bf16, or f32 where the caller keeps accumulating.
inline void store_row(void* row, const LaneRowsOut& rows, int d, int dim, __m512 low, __m512 high) {
  if (rows.dtype == DType::bf16) return store_row_bf16(row, rows.stride, d, dim, round_bf16(low, high));
  store_row_f32(row, rows.stride, d, dim, low);
  if (d + 16 < dim) store_row_f32(row, rows.stride, d + 16, dim, high);
}

/// Stores a row; at(d) gives elements d ... d + 15.
template <class At>
void write_row(void* row, const LaneRowsOut& rows, int dim, const At& at) {
  for (int d = 0; d < dim; d += 32) store_row(row, rows, d, dim, at(d), d + 16 < dim ? at(d + 16) : _mm512_setzero_ps());
}

/// pairs[d] = {a[d], b[d]} for d < padded, a multiple of 16; zeros from dim on.
inline void pack_pairs(const void* a, const void* b, std::int64_t stride, int dim, int padded, Pair* pairs) {
  for (int d = 0; d < padded; d += 32) {
    __m512i low, high;
    if (d < dim) {
      interleave_rows(load_row_bf16(a, stride, d, dim), load_row_bf16(b, stride, d, dim), &low, &high);
    } else {
      low = high = _mm512_setzero_si512();
    }
    _mm512_store_si512(pairs + d, low);
    if (d + 16 < padded) _mm512_store_si512(pairs + d + 16, high);
  }
}

}  // namespace
}  // namespace foveal::cpu
