#pragma once
// Packing for AMX: matrices of bf16 in tiles of 16 rows x 64 bytes, 1 KB each. row(i) is row i, null for zeros.
#include "cpu/kernels/avx512_bf16.h"

namespace foveal::cpu {
namespace {

constexpr int kTile = 1024;

/// The table of a layout of `rows` queries, from the functions of L.
template <class L>
constexpr PackedLayout layout_of(int rows) {
  return {.rows = rows,
          .q_bytes = L::q_bytes,
          .acc_bytes = L::acc_bytes,
          .k_bytes = L::k_bytes,
          .v_bytes = L::v_bytes,
          .pack_q = L::pack_q,
          .pack_k = L::pack_k,
          .pack_v = L::pack_v,
          .write = L::write};
}

inline void store_tile(char* tile, const __m512i (&x)[16]) {
  for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + 64 * i, x[i]);
}

/// For every 16 rows tiles of 16 rows x 32 dims, each changed by fn before it is stored:
/// transposed, it is one of 16 pairs of dims x 16 rows.
template <class Row, class Fn>
void pack_row_tiles(int rows, int dim, const Row& row, std::int64_t stride, void* packed, const Fn& fn) {
  char* out = static_cast<char*>(packed);
  for (int first = 0; first < rows; first += 16) {
    for (int d = 0; d < dim; d += 32, out += kTile) {
      __m512i x[16];
      for (int i = 0; i < 16; ++i) x[i] = load_row_bf16(row(first + i), stride, d, dim);
      fn(x);
      store_tile(out, x);
    }
  }
}

/// For every 16 of `padded` dims tiles of 16 pairs of rows x 16 dims, each changed by fn before it is stored.
template <class Row, class Fn>
void pack_pair_tiles(int rows, int dim, int padded, const Row& row, std::int64_t stride, void* packed, const Fn& fn) {
  for (int first = 0; first < rows; first += 32) {
    for (int d = 0; d < dim; d += 32) {
      __m512i low[16], high[16];
      load_pairs_of_rows(first, d, dim, row, stride, low, high);
      char* out = static_cast<char*>(packed) + (d / 16 * (rows / 32) + first / 32) * kTile;
      fn(low), store_tile(out, low);
      if (d + 16 < padded) fn(high), store_tile(out + rows / 32 * kTile, high);
    }
  }
}

}  // namespace
}  // namespace foveal::cpu
