#pragma once
// Split-KV: decode has few tiles and many keys, so several tasks share the keys of a tile. The shape decides how
// many; their partial results are merged in order.
#include <algorithm>
#include <cmath>

#include "cpu/setup.h"

namespace foveal::cpu {

/// The softmax state of a tile: unnormalised output, maxima, sums.
template <class Real>
struct TileSums {
  Real *acc, *max, *sum;
};

template <class Real>
class SplitKv {
 public:
  explicit SplitKv(const Setup<Real>& setup) : s_(setup), lanes_(setup.ops.tile_lanes), count_(choose()) {}

  int count() const { return count_; }
  bool several() const { return count_ > 1; }
  /// Bytes of the state of all tiles and splits.
  std::size_t bytes() const { return several() ? static_cast<std::size_t>(places() * count_) * count_of_sums() * sizeof(Real) : 0; }

  TileSums<Real> sums(void* memory, std::int64_t tile, int split) const {
    Real* acc = static_cast<Real*>(memory) + static_cast<std::size_t>(tile * count_ + split) * count_of_sums();
    return {acc, acc + acc_count(), acc + acc_count() + lanes_};
  }
  /// Merges the splits of a tile into the first, in order. max and factor: scratch.
  TileSums<Real> merge(void* memory, std::int64_t tile, Real* max, Real* factor) const {
    const TileSums<Real> all = sums(memory, tile, 0);
    for (int split = 1; split < count_; ++split) {
      const TileSums<Real> part = sums(memory, tile, split);
      for (int lane = 0; lane < lanes_; ++lane) max[lane] = std::max(all.max[lane], part.max[lane]);
      rescale(all, max, factor);
      rescale(part, max, factor);
      for (std::size_t i = 0; i < acc_count(); ++i) all.acc[i] += part.acc[i];
      for (int lane = 0; lane < lanes_; ++lane) all.sum[lane] += part.sum[lane], all.max[lane] = max[lane];
    }
    return all;
  }

 private:
  std::size_t acc_count() const { return s_.acc_count(s_.dim_v); }
  int choose() const {
    constexpr std::int64_t wanted_tasks = 32, blocks_worth_a_task = 8;
    if (!s_.work && !s_.problem.paged) return 1;
    const std::int64_t blocks = s_.problem.seqlen_kv / s_.ops.block_kv;
    const std::int64_t tiles = s_.work ? places() : s_.planner.likely_tiles();
    return static_cast<int>(
        std::clamp<std::int64_t>(std::min(wanted_tasks / std::max<std::int64_t>(tiles, 1), blocks / blocks_worth_a_task), 1, 32));
  }
  /// Tiles that are split.
  std::int64_t places() const { return s_.work ? static_cast<std::int64_t>(s_.work->tiles.size()) : s_.planner.max_tiles(); }
  std::size_t count_of_sums() const { return acc_count() + 2 * static_cast<std::size_t>(lanes_); }
  void rescale(const TileSums<Real>& sums, const Real* max, Real* factor) const {
    for (int lane = 0; lane < lanes_; ++lane) {
      factor[lane] = std::exp2(-s_.rise(sums.max[lane], max[lane]));
      sums.sum[lane] *= factor[lane];
    }
    s_.ops.scale_lanes(sums.acc, s_.dim_v, lanes_, factor);
  }

  const Setup<Real>& s_;
  const int lanes_, count_;
};

}  // namespace foveal::cpu
