#pragma once
// Masked and dropped pairs must not propagate infinity or NaN. But tiles are multiplied whole, with zero weights for such pairs, and
// 0 * infinity is NaN. So where rows hold nonfinite elements, the products that sum over pairs read copies with zeros instead, and their
// contribution to the pairs that are kept is added here, one by one. Finite rows cost one check.
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "cpu/lanes.h"

namespace foveal::cpu {

constexpr int max_block_kv = 128;  ///< longest block of any table

/// The unmasked pairs of a tile: for each key one bit per lane.
struct KeptPairs {
  std::uint64_t lanes[max_block_kv];

  bool operator()(int key, int lane) const { return lanes[key] >> lane & 1; }

  /// Zeros for dropped pairs: exp(-inf - lse) is zero, except where lse is NaN.
  template <class Real>
  void clear_dropped(Real* tile, int ld, KeyRange range, int valid) const {
    for (int key = range.begin; key < range.end; ++key)
      for (int lane = 0; lane < valid; ++lane)
        if (!(*this)(key, lane)) tile[key * ld + lane] = 0;
  }

  /// From the scores of valid lanes: pairs inside the ranges whose score is not -inf.
  template <class Real>
  void record(const Real* scores, int ld, KeyRange range, int valid, const LaneRanges& ranges) {
    for (int key = range.begin; key < range.end; ++key) {
      lanes[key] = 0;
      for (int lane = 0; lane < valid; ++lane) {
        const bool inside = !ranges.first || (ranges.first[lane] <= key && key < ranges.last[lane]);
        if (inside && scores[key * ld + lane] != -std::numeric_limits<Real>::infinity()) lanes[key] |= std::uint64_t{1} << lane;
      }
    }
  }
};

/// The rows of a block of keys or of a tile of lanes that hold infinity or NaN.
class NonfiniteRows {
 public:
  bool any() const { return any_; }
  void clear() { any_ = false; }

  /// Where some rows hold infinity or NaN, `rows` becomes copies in `memory` (rows * dim elements) with zeros instead.
  template <class Real>
  void take(const BlockOps<Real>& ops, int dim, void* memory, LaneRows& rows) {
    any_ = !ops.finite(rows, dim);
    if (!any_) return;
    stride_ = rows.stride, dtype_ = rows.dtype;
    const std::size_t size = size_of(rows.dtype);
    for (int i = 0; i < rows.lanes; ++i) {
      row_[i] = nullptr;
      copy_[i] = rows.row[i] ? static_cast<char*>(memory) + static_cast<std::size_t>(i) * static_cast<std::size_t>(dim) * size : nullptr;
      for (int d = 0; d < dim && rows.row[i]; ++d) {
        void* to = static_cast<char*>(copy_[i]) + static_cast<std::size_t>(d) * size;
        if (std::isfinite(base::load(rows.row[i], rows.dtype, d * rows.stride))) {
          std::memcpy(to, static_cast<const char*>(rows.row[i]) + d * rows.stride * static_cast<std::int64_t>(size), size);
        } else {
          std::memset(to, 0, size);
          row_[i] = rows.row[i];
        }
      }
    }
    rows = {copy_, rows.lanes, 1, rows.dtype};
  }
  /// The same for the rows of keys.
  template <class Real>
  void take(const BlockOps<Real>& ops, int keys, int dim, void* memory, KeyRows& rows) {
    const void* pointers[max_block_kv];
    const auto row_bytes = rows.row_stride * static_cast<std::int64_t>(size_of(rows.dtype));
    for (int key = 0; key < keys; ++key) pointers[key] = static_cast<const char*>(rows.data) + key * row_bytes;
    LaneRows as_lanes{pointers, keys, rows.stride, rows.dtype};
    take(ops, dim, memory, as_lanes);
    if (any_) rows = {memory, dim, 1, rows.dtype};
  }

  /// These are keys: acc[d][lane] += weights[key][lane] * x for the kept pairs. With dropout a weight of zero is a dropped pair.
  template <class Real>
  void mix(KeyRange range, const KeptPairs& kept, const Real* weights, int ld, int lanes, int dim, bool dropout, Real* acc) const {
    for (int key = range.begin; key < range.end; ++key) {
      if (!row_[key] || kept.lanes[key] == 0) continue;
      const Real* weight = weights + key * ld;
      for (int d = 0; d < dim; ++d) {
        const auto x = static_cast<Real>(base::load(row_[key], dtype_, d * stride_));
        if (std::isfinite(x)) continue;
        for (int lane = 0; lane < lanes; ++lane)
          if (kept(key, lane) && !(dropout && weight[lane] == 0)) acc[d * ld + lane] += weight[lane] * x;
      }
    }
  }
  /// These are lanes, and `first` is the first of the weights': acc[key][d] += weights[key][lane] * x for the kept pairs.
  template <class Real>
  void spread(int first, KeyRange range, const KeptPairs& kept, const Real* weights, int ld, int lanes, int dim, bool dropout,
              Real* acc) const {
    for (int lane = 0; lane < lanes; ++lane) {
      const void* row = row_[first + lane];
      if (!row) continue;
      for (int d = 0; d < dim; ++d) {
        const auto x = static_cast<Real>(base::load(row, dtype_, d * stride_));
        if (std::isfinite(x)) continue;
        for (int key = range.begin; key < range.end; ++key) {
          const Real weight = weights[key * ld + lane];
          if (kept(key, lane) && !(dropout && weight == 0)) acc[std::int64_t{key} * padded_dim(dim) + d] += weight * x;
        }
      }
    }
  }

 private:
  bool any_ = false;
  std::int64_t stride_ = 1;
  DType dtype_ = DType::f32;
  const void* row_[max_block_kv];  ///< null: finite
  void* copy_[max_block_kv];
};

}  // namespace foveal::cpu
