#pragma once
// The packed operands and the accumulators of the AMX forward kernel.
#include "cpu/kernels/amx_pack.h"

namespace foveal::cpu {
namespace {

/// Packed layouts of a tile of 32 queries and of a block of keys: the same for both orders.
struct AmxForwardLayout {
  static constexpr int kRows = 32, kGranule = KeySpan::granule;

  // Sizes in bytes, of one tile of queries or one block of `keys` keys.
  static std::size_t q_bytes(int dim) { return std::size_t{kTile} * 2 * (round_up(dim, 32) / 32); }
  static std::size_t acc_bytes(int dim_v) { return std::size_t{kTile} * 2 * (round_up(dim_v, 16) / 16); }
  static std::size_t k_bytes(int keys, int dim) { return static_cast<std::size_t>(keys) * 2 * round_up(dim, 32); }
  static std::size_t v_bytes(int keys, int dim_v) { return static_cast<std::size_t>(keys) * 2 * round_up(dim_v, 16); }
  static std::size_t p_bytes(int keys) { return std::size_t{kTile} * 2 * (keys / kGranule); }

  static void pack_q(const LaneRows& rows, int dim, float sign, void* packed) {
    const __m512i flip = _mm512_set1_epi32(sign < 0 ? static_cast<int>(0x80008000u) : 0);
    const auto row = [&](int i) { return i < rows.lanes ? rows.row[i] : nullptr; };
    pack_row_tiles(kRows, dim, row, rows.stride, packed, [&](__m512i(&tile)[16]) {
      for (__m512i& x : tile) x = _mm512_xor_si512(x, flip);
    });
  }
  /// Of `block` keys, those from `keys` on zeros: for every 16 keys, tiles of pairs of dims by keys.
  static void pack_k(const KeyRows& rows, int keys, int block, int dim, void* packed) {
    pack_row_tiles(block, dim, BlockRow{rows, keys}, rows.stride, packed, [](__m512i(&tile)[16]) { transpose(tile); });
  }
  /// For every 16 dims, tiles of pairs of keys by dims. False where an element is infinite or NaN.
  static bool pack_v(const KeyRows& rows, int keys, int block, int dim, void* packed) {
    FiniteBf16 finite;
    pack_pair_tiles(block, dim, round_up(dim, 16), BlockRow{rows, keys}, rows.stride, packed, [&](const __m512i(&tile)[16]) {
      for (const __m512i x : tile) finite.look(x);
    });
    return finite.all();
  }

  /// Horizontal sums of the vectors of partial sums.
  static void add_sums(const float* sums, float* row_sums) {
    for (int row = 0; row < kRows; ++row) row_sums[row] = _mm512_reduce_add_ps(_mm512_load_ps(sums + 16 * row));
  }
  /// row[i] = acc[i] * factor[i], zeros where the factor is 0.
  static void write(const float* acc, int dim, const float* factor, const LaneRowsOut& rows) {
    for (int row = 0; row < rows.lanes; ++row) {
      if (!rows.row[row]) continue;
      const __mmask16 any = factor[row] != 0 ? 0xffff : 0;
      const __m512 f = splat(factor[row]);
      write_row(rows.row[row], rows, dim,
                [&](int d) { return _mm512_maskz_mul_ps(any, f, _mm512_load_ps(acc + (d / 16 * kRows + row) * 16)); });
    }
  }
};

}  // namespace
}  // namespace foveal::cpu
