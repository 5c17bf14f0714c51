// Reads of parameters. The address of a read is a sum of clamped indices times strides; where each index varies along the lanes or along
// the rows but not both, rows of the tile are loaded whole.
#pragma once
#include "cpu/kernels/tape_operands.h"
#include "cpu/simd/half.h"

namespace foveal::cpu {
namespace {

class TapeReads : protected TapeOperands {
 protected:
  using TapeOperands::TapeOperands;

  /// A TapePlace with resolved operands; uniform dimensions are folded into `base`.
  struct Address {
    struct Dim {
      TapeRef index;
      Int last;
      std::int64_t stride;
    };
    std::int64_t base;
    int rank;
    bool narrow;
    Dim dims[TensorView::max_rank];
  };

  static Int clamped(Int index, Int last) { return index < 0 ? 0 : index > last ? last : index; }

  Address address(const TapePlace& place) const {
    Address address;
    address.base = 0;
    address.rank = 0;
    address.narrow = place.narrow;
    for (int d = 0; d < place.rank; ++d) {
      const TapePlace::Dim& dim = place.dims[d];
      const TapeRef index = ref<Int>(dim.index);
      if (index.lane == 0 && index.row == 0) {
        address.base += clamped(*reinterpret_cast<const Int*>(index.p), dim.size - 1) * dim.stride;
      } else {
        address.dims[address.rank++] = {index, dim.size - 1, dim.stride};
      }
    }
    return address;
  }

  /// Calls fn(offsets, row, column) for every 16 elements of the step; offsets are relative to address.base and of type Int or int64.
  template <class Fn>
  void each_address(const Address& address, Fn fn) const {
    constexpr int vectors = 16 / kWords;
    for (int r = 0; r < rows_; ++r) {
      for (std::ptrdiff_t i = 0; i < columns_; i += 16) {
        if (address.narrow) {
          alignas(64) Int offsets[16];
          for (int v = 0; v < vectors; ++v) {
            W sum{};
            for (int d = 0; d < address.rank; ++d) {
              const Address::Dim& dim = address.dims[d];
              W index = load<W>(dim.index.p + r * dim.index.row + (i + v * kWords) * dim.index.lane * sizeof(Int));
              index = index < 0 ? W{} : index;
              index = index > dim.last ? splat<W>(dim.last) : index;
              sum += index * static_cast<Int>(dim.stride);
            }
            store(offsets + v * kWords, sum);
          }
          fn(offsets, r, i);
        } else {
          std::int64_t offsets[16] = {};
          for (int d = 0; d < address.rank; ++d) {
            const Address::Dim& dim = address.dims[d];
            const Int* index = reinterpret_cast<const Int*>(dim.index.p + r * dim.index.row +
                                                            i * dim.index.lane * static_cast<std::ptrdiff_t>(sizeof(Int)));
            for (int k = 0; k < 16; ++k) offsets[k] += clamped(index[k * dim.index.lane], dim.last) * dim.stride;
          }
          fn(offsets, r, i);
        }
      }
    }
  }

  /// An address that is the sum of an offset by lane and an offset by row.
  struct Separable {
    Int lane[16];  ///< of 16 lanes
    Int row[tape_strip_rows(TileFrame::lane_multiple)];
    bool lanes_contiguous;                      ///< lane[k] = lane[0] + k
    bool rows_contiguous(int r, int n) const {  ///< row[r + k] = row[r] + k for k < n
      for (int k = 1; k < n; ++k)
        if (row[r + k] != row[r] + k) return false;
      return true;
    }
  };

  /// False when some index varies along both lanes and rows.
  bool separate_rows(const Address& address, Separable& parts) const {
    if (!address.narrow) return false;
    for (int r = 0; r < rows_; ++r) parts.row[r] = 0;
    for (int d = 0; d < address.rank; ++d) {
      const Address::Dim& dim = address.dims[d];
      if (dim.index.row != 0 && dim.index.lane != 0) return false;
      if (dim.index.lane != 0) continue;
      for (int r = 0; r < rows_; ++r)
        parts.row[r] += clamped(*reinterpret_cast<const Int*>(dim.index.p + r * dim.index.row), dim.last) * static_cast<Int>(dim.stride);
    }
    return true;
  }
  void separate_lanes(const Address& address, std::ptrdiff_t first, Separable& parts) const {
    for (int k = 0; k < 16; ++k) parts.lane[k] = 0;
    for (int d = 0; d < address.rank; ++d) {
      const Address::Dim& dim = address.dims[d];
      if (dim.index.lane == 0) continue;
      const Int* index = reinterpret_cast<const Int*>(dim.index.p) + first;
      for (int k = 0; k < 16; ++k) parts.lane[k] += clamped(index[k], dim.last) * static_cast<Int>(dim.stride);
    }
    Int breaks = 0;
    for (int k = 1; k < 16; ++k) breaks |= parts.lane[k] - parts.lane[0] - k;
    parts.lanes_contiguous = breaks == 0;
  }

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
        const Stored* from = data + parts.row[r] + parts.lane[0];
        Out* row = to(r);
        for (int k = 0; k < 16; ++k) row[k] = convert(from[k]);
      }
      // 16 rows that are contiguous in memory: load 16 elements for each lane, then transpose.
      for (; r + 16 <= rows_ && parts.rows_contiguous(r, 16); r += 16) {
        alignas(64) Out square[16][16];
        for (int k = 0; k < 16; ++k) {
          const Stored* from = data + parts.row[r] + parts.lane[k];
          for (int j = 0; j < 16; ++j) square[k][j] = convert(from[j]);
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
        return read<R, std::uint16_t>(step, [](std::uint16_t x) { return static_cast<R>(from_f16(x)); });
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
