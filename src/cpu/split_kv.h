#pragma once
// How decode is divided: few queries, many keys. Where the heads of a key lie side by side, a task walks the keys of several kv heads
// together, so that memory is read in order. With split-KV several tasks share the keys of a tile, and their partial results are merged in
// order. The shape decides both.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/divide.h"
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
  /// tile_bytes: of the state of a tile.
  SplitKv(const Setup<Real>& setup, std::size_t tile_bytes) : s_(setup), ld_(setup.ops.tile_lanes), lanes_(most_lanes()) {
    choose(tile_bytes);
  }

  /// kv heads of a task.
  int heads() const { return heads_; }
  /// Is the next block of all heads prefetched? Where keys and values are more than an L3 holds; from L3 hardware prefetches as well.
  bool prefetches() const { return prefetches_; }
  int count() const { return count_; }
  bool several() const { return count_ > 1; }
  /// Bytes of the partial results of all tiles and splits.
  std::size_t bytes() const { return several() ? static_cast<std::size_t>(places() * count_) * state_count() * sizeof(Real) : 0; }

  /// Keeps the partial result of a tile: of the lanes that exist.
  void save(void* memory, std::int64_t tile, int split, int lanes, const TileSums<Real>& sums) const {
    const TileSums<Real> to = state(memory, tile, split);
    std::copy_n(sums.max, lanes, to.max), std::copy_n(sums.sum, lanes, to.sum);
    for (int d = 0; d < s_.dim_v; ++d) std::copy_n(sums.acc + d * ld_, lanes, to.acc + d * lanes_);
  }
  /// The sum of a tile's splits, in order. factor: scratch.
  void merge(void* memory, std::int64_t tile, int lanes, const TileSums<Real>& all, Real* factor) const {
    std::fill_n(all.acc, s_.acc_count(s_.dim_v), Real(0));
    std::fill_n(all.sum, ld_, Real(0)), std::fill_n(all.max, ld_, -std::numeric_limits<Real>::infinity());
    for (int split = 0; split < count_; ++split)
      for (int lane = 0; lane < lanes; ++lane) all.max[lane] = std::max(all.max[lane], state(memory, tile, split).max[lane]);
    for (int split = 0; split < count_; ++split) {
      const TileSums<Real> part = state(memory, tile, split);
      for (int lane = 0; lane < lanes; ++lane) {
        factor[lane] = std::exp2(-s_.rise(part.max[lane], all.max[lane]));
        all.sum[lane] += factor[lane] * part.sum[lane];
      }
      for (int d = 0; d < s_.dim_v; ++d)
        for (int lane = 0; lane < lanes; ++lane) all.acc[d * ld_ + lane] += factor[lane] * part.acc[d * lanes_ + lane];
    }
  }

 private:
  std::size_t state_count() const { return static_cast<std::size_t>((s_.dim_v + 2) * lanes_); }
  TileSums<Real> state(void* memory, std::int64_t tile, int split) const {
    Real* acc = static_cast<Real*>(memory) + static_cast<std::size_t>(tile * count_ + split) * state_count();
    return {acc, acc + s_.dim_v * lanes_, acc + (s_.dim_v + 1) * lanes_};
  }
  /// Of any tile.
  int most_lanes() const {
    const std::int64_t rows = s_.problem.group_size * s_.problem.seqlen_q;
    return rows > 0 ? static_cast<int>(std::min<std::int64_t>(ld_, rows)) : ld_;
  }
  /// Tiles that are split.
  std::int64_t places() const { return s_.work ? static_cast<std::int64_t>(s_.work->tiles.size()) : s_.planner.max_tiles(); }

  void choose(std::size_t tile_bytes) {
    const problem::Problem& p = s_.problem;
    const std::int64_t batch = std::max<std::int64_t>(p.batch, 1), blocks = (p.varlen ? p.total_kv / batch : p.seqlen_kv) / s_.ops.block_kv;
    if (s_.ops.lane_multiple != 1 || !heads_alternate()) {
      constexpr std::int64_t wanted_tasks = 32, blocks_worth_a_task = 8;
      count_ = splits(blocks / blocks_worth_a_task, wanted_tasks, s_.work ? places() : s_.planner.likely_tiles());
      return;
    }
    // The heads of a sequence whose blocks stay in L2, in tasks of 16 blocks or more. Memory binds: few threads are enough.
    constexpr std::int64_t blocks_worth_a_split = 4;
    const std::int64_t wanted_tasks = std::clamp<std::int64_t>(batch * p.heads_kv * blocks / 16, 1, 16);
    const std::size_t of_tiles = static_cast<std::size_t>(s_.planner.max_tiles_per_group()) * tile_bytes;
    const auto fit = static_cast<std::int64_t>(l2_share / std::max(of_tiles, s_.copy_bytes(s_.ops.block_kv, s_.dim + s_.dim_v)));
    const std::int64_t most_splits = splits(blocks / blocks_worth_a_split, wanted_tasks, batch);
    const std::int64_t parts = std::max(base::divide_up(p.heads_kv, std::max<std::int64_t>(fit, 1)), wanted_tasks / (batch * most_splits));
    heads_ = static_cast<int>(base::divide_up(p.heads_kv, std::min(parts, p.heads_kv)));
    count_ = splits(blocks / blocks_worth_a_split, wanted_tasks, batch * base::divide_up(p.heads_kv, std::int64_t{heads_}));
    constexpr std::int64_t l3_share = std::int64_t{32} << 20;
    const std::size_t row = static_cast<std::size_t>(s_.dim + s_.dim_v) * size_of(p.dtype);
    prefetches_ = heads_ > 1 && batch * p.heads_kv * blocks * s_.ops.block_kv * static_cast<std::int64_t>(row) > l3_share;
  }
  int splits(std::int64_t most, std::int64_t wanted_tasks, std::int64_t tasks) const {
    if (!s_.work && !s_.problem.paged) return 1;
    return static_cast<int>(std::clamp<std::int64_t>(std::min(most, wanted_tasks / std::max<std::int64_t>(tasks, 1)), 1, 32));
  }
  /// The rows of a key's heads lie side by side in memory, as in [batch, seqlen, heads, dim].
  bool heads_alternate() const {
    const auto alternate = [&](const problem::TensorSpec& rows, int dim) {
      return rows.strides[3] == 1 && rows.strides[2] == dim && rows.strides[1] > rows.strides[2];
    };
    return s_.problem.heads_kv > 1 && alternate(s_.problem.k, s_.dim) && alternate(s_.problem.v, s_.dim_v);
  }

  const Setup<Real>& s_;
  const int ld_, lanes_;
  int heads_ = 1, count_ = 1;
  bool prefetches_ = false;
};

}  // namespace foveal::cpu
