// The address of a read or of a sum: clamped indices times strides.
#pragma once
#include "cpu/kernels/tape_operands.h"

namespace foveal::cpu {
namespace {

class TapeAddresses : protected TapeOperands {
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
    for (int r = 0; r < rows_; ++r) {
      for (std::ptrdiff_t i = 0; i < columns_; i += 16) {
        if (address.narrow) {
          alignas(64) Int offsets[16];
          narrow_offsets(address, r, i, offsets);
          fn(offsets, r, i);
        } else {
          std::int64_t offsets[16] = {};
          add_wide_offsets(address, r, i, offsets);
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

  /// Not inlined, as it would be into everything that reads or adds. False when some index varies along both lanes and rows.
  [[gnu::noinline]] bool separate_rows(const Address& address, Separable& parts) const {
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
  [[gnu::noinline]] void separate_lanes(const Address& address, std::ptrdiff_t first, Separable& parts) const {
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

 private:
  void narrow_offsets(const Address& address, int r, std::ptrdiff_t i, Int (&offsets)[16]) const {
    for (int v = 0; v < 16 / kWords; ++v) {
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
  }

  void add_wide_offsets(const Address& address, int r, std::ptrdiff_t i, std::int64_t (&offsets)[16]) const {
    for (int d = 0; d < address.rank; ++d) {
      const Address::Dim& dim = address.dims[d];
      const Int* index =
          reinterpret_cast<const Int*>(dim.index.p + r * dim.index.row + i * dim.index.lane * static_cast<std::ptrdiff_t>(sizeof(Int)));
      for (int k = 0; k < 16; ++k) offsets[k] += clamped(index[k * dim.index.lane], dim.last) * dim.stride;
    }
  }
};

}  // namespace
}  // namespace foveal::cpu
