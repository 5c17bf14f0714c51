#pragma once
// What the backward passes share: tensors, how many tasks share a kv head, and gradients of keys that no query attends to.
#include <algorithm>

#include "cpu/pass.h"
#include "cpu/row_scalars.h"

namespace foveal::cpu {

template <class Real, class Memory>
struct BackwardCallOf : CallOf<Real, Memory> {
  BackwardCallOf(const problem::Buffers& b, const Setup<Real>& s) : CallOf<Real, Memory>(b, s), dout(b.dout), dq(b.dq), dk(b.dk), dv(b.dv) {
    this->rows = RowScalars<Real>(s.problem);
  }
  HeadRows dout, dq, dk, dv;
};

/// Rows of q and dout of a tile. Rows that attend to nothing read as zeros: they may hold NaN.
struct QueryRows {
  template <class Call>
  QueryRows(const Call& call, const Sequence& sequence, const LaneTile& tile) : q(call.q, sequence, tile), dout(call.dout, sequence, tile) {
    for_each_lane(tile, [&](int lane, std::int32_t head, std::int32_t query) {
      if (call.rows.empty(call.rows.index(sequence, head, query))) q.row[lane] = dout.row[lane] = nullptr;
    });
  }
  LanePointers q, dout;
};

/// Into how many tasks a kv head's tiles are divided, each with accumulators of its own for dk and dv. More tasks than
/// a desktop has threads would only cost memory.
struct Shares {
  static constexpr std::int64_t wanted_tasks = 16;
  static constexpr std::size_t limit = std::size_t{128} << 20;  ///< bytes of accumulators

  /// bytes: the accumulators of one share of every kv head.
  Shares(const problem::Problem& problem, const WorkPlanner& planner, std::int64_t tiles_worth_a_task, std::size_t bytes)
      : groups(std::max<std::int64_t>(1, problem.batch * problem.heads_kv)),
        useful(std::clamp<std::int64_t>(planner.max_tiles_per_group() / tiles_worth_a_task, 1, base::divide_up(wanted_tasks, groups))),
        count(std::clamp<std::int64_t>(static_cast<std::int64_t>(limit / std::max<std::size_t>(1, bytes)), 1, useful)) {}
  std::int64_t groups, useful, count;
};

template <class Real, class Call, class Worker, class Lists>
class BackwardPass : public TiledPass<Real, Call, Worker, Lists> {
  using Base = TiledPass<Real, Call, Worker, Lists>;

 protected:
  using Base::Base;
  using Base::s_;

  /// fn(g, first) for each group, `chunk` of at most `longest` keys or blocks at a time.
  template <class Fn>
  void each_chunk(const Work& work, Worker* workers, std::int64_t longest, std::int64_t chunk, Fn&& fn) const {
    const auto chunks = static_cast<std::size_t>(base::divide_up(longest, chunk));
    this->each(work.groups.size() * chunks, workers,
               [&](std::size_t i, Worker&) { fn(i / chunks, static_cast<std::int64_t>(i % chunks) * chunk); });
  }
  /// Calls fn(sequence, kv_head) where there are keys but no queries: dk and dv are zeros there.
  template <class Fn>
  void for_each_unvisited(const Work& work, Fn&& fn) const {
    for (const Sequence& sequence : work.sequences)
      for (std::int32_t head = 0; sequence.seqlen_q == 0 && head < s_.problem.heads_kv; ++head) fn(sequence, head);
  }
};

}  // namespace foveal::cpu
