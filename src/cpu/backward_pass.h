#pragma once
// What the backward passes have in common: their tensors, how many tasks share the tiles of a kv head, and what comes after all tiles.
#include <algorithm>

#include "cpu/pass.h"
#include "cpu/row_scalars.h"

namespace foveal::cpu {

template <class Real, class Memory>
struct BackwardCallOf : CallOf<Memory> {
  BackwardCallOf(const problem::Buffers& b, const Setup<Real>& s)
      : CallOf<Memory>(b), q(b.q), out(b.out), dout(b.dout), dq(b.dq), dk(b.dk), dv(b.dv), k(s.problem, b, b.k), v(s.problem, b, b.v) {
    this->rows = RowScalars<Real>(s.problem);
  }
  HeadRows q, out, dout, dq, dk, dv;
  KeyBlocks k, v;
};

/// Rows of q and dout of a tile. Those with nothing to attend count as zeros: they may hold anything, NaN even.
struct QueryRows {
  template <class Call>
  QueryRows(const Call& call, const Sequence& sequence, const LaneTile& tile) : q(call.q, sequence, tile), dout(call.dout, sequence, tile) {
    for_each_lane(tile, [&](int lane, std::int32_t head, std::int32_t query) {
      if (call.rows.empty(call.rows.index(sequence, head, query))) q.row[lane] = dout.row[lane] = nullptr;
    });
  }
  LanePointers q, dout;
};

/// Tasks that share the tiles of a kv head, each with accumulators of its own for dk and dv. More than the threads of a desktop need would
/// cost memory only.
struct Shares {
  static constexpr std::int64_t wanted_tasks = 16;
  static constexpr std::size_t limit = std::size_t{128} << 20;  ///< bytes of accumulators

  /// bytes: of the accumulators of one share of all kv heads.
  Shares(const problem::Problem& problem, const WorkPlanner& planner, std::int64_t tiles_worth_a_task, std::size_t bytes)
      : groups(std::max<std::int64_t>(1, problem.batch * problem.heads_kv)),
        useful(std::clamp<std::int64_t>(planner.max_tiles_per_group() / tiles_worth_a_task, 1, (wanted_tasks + groups - 1) / groups)),
        count(std::clamp<std::int64_t>(static_cast<std::int64_t>(limit / std::max<std::size_t>(1, bytes)), 1, useful)) {}
  std::int64_t groups, useful, count;
};

template <class Real, class Call, class Slot, class Lists>
class BackwardPass : public TiledPass<Real, Call, Slot, Lists> {
  using Base = TiledPass<Real, Call, Slot, Lists>;

 protected:
  using Base::Base;
  using Base::s_;

  /// fn(g, first) for each group, `chunk` of at most `longest` keys or blocks at a time.
  template <class Fn>
  void each_chunk(const Work& work, Slot* slots, std::int64_t longest, std::int64_t chunk, Fn&& fn) const {
    const auto chunks = static_cast<std::size_t>((longest + chunk - 1) / chunk);
    this->each(work.groups.size() * chunks, slots,
               [&](std::size_t i, Slot&) { fn(i / chunks, static_cast<std::int64_t>(i % chunks) * chunk); });
  }
  /// fn(sequence, kv_head) where there are keys and no queries. Without tiles, dk and dv are zeros all the same.
  template <class Fn>
  void for_each_unmet(const Work& work, Fn&& fn) const {
    for (const Sequence& sequence : work.sequences)
      for (std::int32_t head = 0; sequence.seqlen_q == 0 && head < s_.problem.heads_kv; ++head) fn(sequence, head);
  }
};

}  // namespace foveal::cpu
