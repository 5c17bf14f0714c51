#pragma once
// The packed operands and the accumulators of the AMX backward kernel: tiles of 64 queries, blocks of 128 keys.
#include "cpu/kernels/amx_pack.h"
#include "cpu/simd/avx512.h"

namespace foveal::cpu {
namespace {

struct AmxBackwardLayout {
  static constexpr int kLanes = 64, kKeys = 128;

  static std::size_t packed_bytes(int rows, int dim) { return static_cast<std::size_t>(rows) * round_up(dim, 32) * 2; }
  static std::size_t acc_bytes(int rows, int dim) { return static_cast<std::size_t>(rows) * round_up(dim, 32) * 4; }

  /// The table of a kernel with this layout. unit: of its exponential's argument (PackedBackwardOps).
  static constexpr PackedBackwardOps table_of(float unit, std::size_t scratch_bytes, void (*visit)(const BackwardVisit&)) {
    return {.lanes = kLanes,
            .keys = kKeys,
            .unit = unit,
            .packed_bytes = packed_bytes,
            .acc_bytes = acc_bytes,
            .scratch_bytes = scratch_bytes,
            .row_dots = row_dots,
            .pack_queries = pack_queries,
            .pack_keys = pack_keys,
            .visit = visit,
            .write_queries = write_queries,
            .write_keys = write_keys};
  }

  /// result[row] = a . b, each row in 16 partial sums.
  static void row_dots(const LaneRows& a, const LaneRows& b, int dim, float* result) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const auto even = [](__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); };
    const auto odd = [&](__m512i x) { return _mm512_castsi512_ps(_mm512_and_si512(x, upper)); };
    for (int lane = 0; lane < a.lanes; lane += 16) {
      __m512 sums[16];
      for (int i = 0; i < 16; ++i) {
        sums[i] = _mm512_setzero_ps();
        for (int d = 0; d < dim; d += 32) {
          const __m512i x = load_row_bf16(a.row[lane + i], a.stride, d, dim), y = load_row_bf16(b.row[lane + i], b.stride, d, dim);
          sums[i] = _mm512_fmadd_ps(odd(x), odd(y), _mm512_fmadd_ps(even(x), even(y), sums[i]));
        }
      }
      Avx512F32::transpose(sums);
      for (int i = 1; i < 16; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
      _mm512_store_ps(result + lane, sums[0]);
    }
  }

  /// panel: for every 16 queries, tiles of pairs of dims by queries. pairs: for every 16 dims, tiles of pairs of queries by dims.
  static bool pack_queries(const LaneRows& rows, int dim, void* panel, void* pairs) {
    FiniteBf16 finite;
    const auto row = [&](int i) { return rows.row[i]; };
    pack_row_tiles(kLanes, dim, row, rows.stride, panel, [&](__m512i(&tile)[16]) {
      for (const __m512i x : tile) finite.look(x);
      transpose(tile);
    });
    pack_pair_tiles(kLanes, dim, round_up(dim, 32), row, rows.stride, pairs, [](const __m512i(&)[16]) {});
    return finite.all();
  }
  /// packed: for every 16 keys, tiles of keys by dims. columns: for every 16 dims, tiles of dims by keys.
  static bool pack_keys(const LaneRows& rows, int dim, void* packed, void* columns) {
    FiniteBf16 finite;
    const auto row = [&](int i) { return rows.row[i]; };
    pack_row_tiles(kKeys, dim, row, rows.stride, packed, [&](const __m512i(&tile)[16]) {
      for (const __m512i x : tile) finite.look(x);
    });
    if (columns) pack_pair_tiles(kKeys, dim, round_up(dim, 32), row, rows.stride, columns, [](__m512i(&tile)[16]) { transpose(tile); });
    return finite.all();
  }

  /// row[query] = dq * factor. For every 16 columns dq has tiles of dims by queries; see query_of().
  static void write_queries(const float* dq, int dim, float factor, const LaneRowsOut& rows) {
    const __m512 f = splat(factor);
    const int tiles = round_up(dim, 32) / 16;
    for (int column = 0; column < kLanes; column += 16) {
      for (int d = 0; d < dim; d += 32) {
        __m512 x[2][16];
        for (int half = 0; half < 2; ++half) {
          const float* tile = dq + (column / 16 * tiles + d / 16 + half) * 256;
          for (int i = 0; i < 16; ++i) x[half][i] = _mm512_mul_ps(_mm512_load_ps(tile + 16 * i), f);
          Avx512F32::transpose(x[half]);
        }
        for (int i = 0; i < 16; ++i) {
          void* row = rows.row[query_of(column + i)];
          if (row) store_row(row, rows, d, dim, x[0][i], x[1][i]);
        }
      }
    }
  }
  /// row[key] = the sum of the parts, in order, * factor. For every 32 keys a part has tiles of 32 keys by 16 dims.
  static void write_keys(const float* const* parts, int count, int dim, float factor, const LaneRowsOut& rows) {
    const __m512 f = splat(factor);
    const int tiles = round_up(dim, 16) / 16;
    for (int key = 0; key < rows.lanes; ++key) {
      const auto sum = [&](int d) {
        const std::int64_t at = ((std::int64_t{key} / 32 * tiles + d / 16) * 32 + key % 32) * 16;
        __m512 x = _mm512_setzero_ps();
        for (int part = 0; part < count; ++part) x = _mm512_add_ps(x, _mm512_load_ps(parts[part] + at));
        return _mm512_mul_ps(x, f);
      };
      write_row(rows.row[key], rows, dim, sum);
    }
  }

  /// The query in a column of dS^T: unpacking puts four columns in the lower tile, four in the upper one.
  static constexpr int query_of(int column) { return column / 32 * 32 + column % 16 / 4 * 8 + column / 16 % 2 * 4 + column % 4; }
};

}  // namespace
}  // namespace foveal::cpu
