// Reads of parameters. Where each index varies along the lanes or along the rows but not both, rows of the tile are loaded whole.
#pragma once
#include "cpu/kernels/tape_addresses.h"
#include "cpu/simd/half.h"
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace foveal::cpu {
namespace {

/// Elements of f16, which compilers convert one by one where there is an instruction for many.
template <class R>
struct FromF16 {
#if defined(__F16C__)
  R operator()(std::uint16_t x) const { return static_cast<R>(_cvtsh_ss(x)); }
#else
  R operator()(std::uint16_t x) const { return static_cast<R>(from_f16(x)); }
#endif
};

/// to[0 .. 15] = convert(from[0 .. 15])
template <class Stored, class Out, class Convert>
void convert_run(const Stored* from, Out* to, Convert convert) {
  for (int k = 0; k < 16; ++k) to[k] = convert(from[k]);
}
#if defined(__F16C__)
template <class R>
void convert_run(const std::uint16_t* from, R* to, FromF16<R>) {
  alignas(32) float x[16];
  for (int half = 0; half < 16; half += 8)
    _mm256_store_ps(x + half, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + half))));
  for (int k = 0; k < 16; ++k) to[k] = static_cast<R>(x[k]);
}
#endif

class TapeReads : protected TapeAddresses {
 protected:
  using TapeAddresses::TapeAddresses;

  template <class Out, class Stored, class Convert>
  void read(const TapeStep& step, Convert convert) {
    const TapePlace& place = call_.program->places[step.place];
    const Address at = address(place);
    const Stored* data = static_cast<const Stored*>(call_.data->params[place.param].data) + at.base;
    const TapeRef out = ref<Out>(step.out);
    if (at.rank == 0) return fill<Out>(step, convert(*data));  // never in a strip: such a value is uniform
    Separable parts;
    if (rows_ == 1 || !separate_rows(at, parts)) {
      return each_address(at, [&](const auto& offsets, int r, std::ptrdiff_t i) {
        Out* to = reinterpret_cast<Out*>(out.p + r * out.row) + i;
        for (int k = 0; k < 16; ++k) to[k] = convert(data[offsets[k]]);
      });
    }
    for (std::ptrdiff_t i = 0; i < columns_; i += 16) {
      separate_lanes(at, i, parts);
      const auto to = [&](int r) { return reinterpret_cast<Out*>(out.p + r * out.row) + i; };
      int r = 0;
      for (; r < rows_ && parts.lanes_contiguous; ++r) {
        convert_run(data + parts.row[r] + parts.lane[0], to(r), convert);
      }
      // 16 rows that are contiguous in memory: load 16 elements for each lane, then transpose.
      for (; r + 16 <= rows_ && parts.rows_contiguous(r, 16); r += 16) {
        alignas(64) Out square[16][16];
        for (int k = 0; k < 16; ++k) {
          const Stored* from = data + parts.row[r] + parts.lane[k];
          __builtin_prefetch(from + frame_.keys);  // of the next tile of keys: more lanes than hardware follows
          convert_run(from, square[k], convert);
        }
        transpose(square);
        for (int j = 0; j < 16; ++j) __builtin_memcpy(to(r + j), square[j], sizeof square[j]);
      }
      for (; r < rows_; ++r) {
        Out* row = to(r);
        for (int k = 0; k < 16; ++k) row[k] = convert(data[parts.row[r] + parts.lane[k]]);
      }
    }
  }

  /// log2(n) perfect shuffles of n rows, in n x n pieces where a vector is shorter than a row.
  template <class T>
  static void transpose(T (&square)[16][16]) {
    constexpr int n = kVectorBytes / sizeof(T) < 16 ? kVectorBytes / sizeof(T) : 16;
    using Row = Vec<T, n>;
    T result[16][16];
    for (int a = 0; a < 16; a += n) {
      for (int b = 0; b < 16; b += n) {
        Row rows[n], next[n];
        for (int k = 0; k < n; ++k) rows[k] = load<Row>(&square[a + k][b]);
        for (int width = 1; width < n; width *= 2) {
          for (int k = 0; k < n / 2; ++k) {
            next[2 * k] = interleave_low(rows[k], rows[k + n / 2]);
            next[2 * k + 1] = interleave_high(rows[k], rows[k + n / 2]);
          }
          for (int k = 0; k < n; ++k) rows[k] = next[k];
        }
        for (int k = 0; k < n; ++k) store(&result[b + k][a], rows[k]);
      }
    }
    __builtin_memcpy(square, result, sizeof square);
  }

  template <class R>
  void read_reals(const TapeStep& step) {
    switch (call_.data->params[call_.program->places[step.place].param].dtype) {
      case DType::f64:
        return read<R, double>(step, [](double x) { return static_cast<R>(x); });
      case DType::f32:
        return read<R, float>(step, [](float x) { return static_cast<R>(x); });
      case DType::bf16:
        return read<R, std::uint16_t>(step, [](std::uint16_t x) { return static_cast<R>(from_bf16(x)); });
      case DType::f16:
        return read<R, std::uint16_t>(step, FromF16<R>{});
      default:
        return;
    }
  }

  template <class Stored>
  void read_integers_of(const TapeStep& step) {
    if (step.op == TapeOp::read_l) return read<Int64, Stored>(step, [](Stored x) { return static_cast<Int64>(x); });
    if (step.op == TapeOp::read_b) return read<Int, Stored>(step, [](Stored x) { return x != 0 ? Int{-1} : Int{0}; });
    return read<Int, Stored>(step, [](Stored x) {
      if constexpr (sizeof(Stored) == 8)
        return static_cast<Int>(x > 2147483647 ? 2147483647 : x < -2147483647 - 1 ? -2147483647 - 1 : x);
      else
        return static_cast<Int>(x);
    });
  }

  void read_integers(const TapeStep& step) {
    switch (call_.data->params[call_.program->places[step.place].param].dtype) {
      case DType::i64:
        return read_integers_of<std::int64_t>(step);
      case DType::i32:
        return read_integers_of<std::int32_t>(step);
      case DType::i16:
        return read_integers_of<std::int16_t>(step);
      case DType::i8:
        return read_integers_of<std::int8_t>(step);
      case DType::u8:
      case DType::boolean:
        return read_integers_of<std::uint8_t>(step);
      default:
        return;
    }
  }
};

}  // namespace
}  // namespace foveal::cpu
