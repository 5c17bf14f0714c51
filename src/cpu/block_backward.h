#pragma once
// What the fused and split strategies share: per-row scalars first, parameter gradients, and tiles over blocks of keys.
#include "cpu/backward_blocks.h"
#include "cpu/backward_pass.h"
#include "cpu/backward_tasks.h"

namespace foveal::cpu {

struct BackwardChoice {
  BackwardStrategy strategy;
  std::int64_t shares;
  std::string because;
};

template <class Real>
class BlockBackward : public BackwardPass<Real, BackwardCall<Real>, BackwardWorker<Real>, BackwardTasks> {
  using Base = BackwardPass<Real, BackwardCall<Real>, BackwardWorker<Real>, BackwardTasks>;

 protected:
  using Base::s_;
  using Call = BackwardCall<Real>;
  using Tile = LaneState<Real>;
  using Worker = BackwardWorker<Real>;
  using Memory = BackwardMemory<Real>;

  BlockBackward(std::unique_ptr<const Setup<Real>> setup, const BackwardChoice& choice)
      : Base(std::move(setup)),
        choice_(choice),
        grads_(s_.problem, choice.shares),
        tiles_per_step_(choose_tiles_per_step()),
        sums_(s_),
        blocks_(s_, {wants_dq(), s_.problem.dk.present, s_.problem.dv.present, wants_dq() || s_.problem.dk.present || !grads_.empty()}) {}

  /// own_rows: rows of a worker's accumulators.
  void plan_tasks(std::int64_t own_rows, std::int64_t shared_rows, int blocks_per_task) {
    this->memory_.bytes(&Memory::grads, grads_.workspace_bytes());
    this->memory_.part(&Memory::rows, RowScalars<Real>::layout(s_.problem));
    this->memory_.part(&Memory::shared, sums_.layout(shared_rows));
    this->worker_.part(&Worker::own, sums_.layout(own_rows));
    blocks_.lay_out(this->worker_, this->tile_, blocks_per_task);
    this->plan(tiles_per_step_, BackwardTasks::bytes(s_.planner, choice_.shares));
  }

  bool wants_dq() const { return s_.problem.dq.present; }
  bool wants_keys() const { return s_.problem.dk.present || s_.problem.dv.present; }
  bool fused() const { return choice_.strategy == BackwardStrategy::fused; }

  std::string path() const final { return std::string("backward.") + to_string(choice_.strategy); }
  double products() const final { return fused() ? 2.5 : 3.5; }
  void describe_strategy(Explanation& explanation) const final {
    explanation.strategy = to_string(choice_.strategy);
    explanation.reduction = grads_.reduction();
    explanation.details.emplace_back("strategy because", choice_.because);
    if (fused()) explanation.details.emplace_back("shares of a kv head", std::to_string(choice_.shares));
    explanation.details.emplace_back("tiles in a step", std::to_string(tiles_per_step_));
    grads_.describe(explanation, s_.problem, s_.tape);
  }
  BackwardTasks make_lists(const Work& work) const final {
    return {{.strategy = choice_.strategy,
             .shares = choice_.shares,
             .wants_dq = wants_dq(),
             .wants_keys = wants_keys(),
             .tiles_per_step = tiles_per_step_,
             .block_kv = s_.ops.block_kv,
             .grads = &grads_},
            work};
  }

  bool run_lists(const Call& call, const BackwardTasks& lists, Worker* workers) const final {
    const Work& work = *call.work;
    grads_.clear(call.grads, call.buffers.dparams, s_.executor);
    constexpr std::size_t tiles_per_task = 16;
    this->each(base::divide_up(work.tiles.size(), tiles_per_task), workers, [&](std::size_t i, Worker& worker) {
      fill_rows(call, i * tiles_per_task, std::min(work.tiles.size(), (i + 1) * tiles_per_task), worker);
    });
    call.rows.write_dsink(s_, call.buffers);
    run_tasks(call, lists, workers);
    this->for_each_unvisited(work, [&](const Sequence& sequence, std::int32_t kv_head) {
      const KeySums<Real>& zeros = fused() && choice_.shares > 1 ? call.shared : workers[0].own;  // at least a block
      const std::int64_t rows = s_.ops.block_kv;
      sums_.clear(zeros, rows);
      for (std::int64_t key = 0; key < sequence.seqlen_kv; key += rows)
        sums_.write(call, sequence, kv_head, key, std::min(rows, sequence.seqlen_kv - key), zeros);
    });
    grads_.finish(call.grads, call.buffers.dparams, s_.executor);
    return true;
  }
  virtual void run_tasks(const Call& call, const BackwardTasks& lists, Worker* workers) const = 0;

  /// Calls fn(task, grads) for the tasks of a unit; grads: null where no parameter is trained.
  template <class Fn>
  void for_each_query_task(const Call& call, const BackwardTasks& lists, std::size_t u, Fn&& fn) const {
    const QueryUnit& unit = lists.units[u];
    const TapeGrads grads = grads_.empty() ? TapeGrads{} : grads_.grads(call.grads, call.buffers.dparams, unit.partition);
    for (std::size_t t = unit.begin; t < unit.end; ++t) fn(lists.query_tasks[t], grads_.empty() ? nullptr : &grads);
  }

  /// Runs the tiles of a task over the blocks of keys that they need, a few tiles at a time. sums: of the
  /// sequence's keys; null: only dq and parameter gradients.
  void pass_blocks(const Call& call, const Task& task, const KeySums<Real>* sums, const TapeGrads* grads, Worker& worker) const {
    for (std::int64_t t = task.tile_begin; t < task.tile_end; t += tiles_per_step_)
      step(call, call.work->group(task), t, static_cast<int>(std::min<std::int64_t>(task.tile_end - t, tiles_per_step_)), sums, grads,
           worker);
  }

 private:
  int choose_tiles_per_step() const {
    const std::size_t lanes = static_cast<std::size_t>(s_.ops.tile_lanes);
    const std::size_t tile_bytes = s_.ops.panel_bytes(s_.dim) + s_.ops.panel_bytes(s_.dim_v) + s_.ops.rows_bytes(s_.dim) +
                                   s_.ops.rows_bytes(s_.dim_v) + lanes * static_cast<std::size_t>(s_.dim) * sizeof(Real);
    return static_cast<int>(std::clamp<std::size_t>(l2_share / tile_bytes, 1, 4));
  }

  void fill_rows(const Call& call, std::size_t tile_begin, std::size_t tile_end, Worker& worker) const {
    const Work& work = *call.work;
    auto group = std::upper_bound(work.groups.begin(), work.groups.end(), static_cast<std::int64_t>(tile_begin),
                                  [](std::int64_t t, const TileGroup& g) { return t < g.tile_end; });
    for (std::size_t t = tile_begin; t < tile_end; ++t) {
      while (static_cast<std::int64_t>(t) >= group->tile_end) ++group;
      const Sequence& sequence = work.sequence(*group);
      if (call.rows.fill(call.buffers, sequence, work.tiles[t], s_.dim_v, s_.ops.row_dots))
        blocks_.measure(call, sequence, group->kv_head, work.tiles[t], worker);
    }
  }

  void step(const Call& call, const TileGroup& group, std::int64_t tile_begin, int count, const KeySums<Real>* sums, const TapeGrads* grads,
            Worker& worker) const {
    const Sequence& sequence = call.work->sequence(group);
    for (int t = 0; t < count; ++t) {
      Tile& state = worker.tiles[t];
      blocks_.start(call, sequence, call.work->tile(tile_begin + t), sums != nullptr, worker, state);
      if (wants_dq()) std::fill_n(state.dq, std::int64_t{s_.dim} * s_.ops.tile_lanes, Real(0));
    }
    for (std::int32_t block = 0; (block = next_block(worker.tiles, count, block)) != BlockCursor::none; ++block) {
      const bool drops = s_.drops_anywhere() || any_partial(worker.tiles, count, block);
      blocks_.prepare(call, sequence, group.kv_head, block, {.mix = wants_dq(), .drops = drops}, 0, worker);
      const KeySums<Real> of_block = sums ? sums_.at(*sums, std::int64_t{block} * s_.ops.block_kv) : KeySums<Real>{};
      for (int t = 0; t < count; ++t)
        if (worker.tiles[t].block == block)
          blocks_.visit(call, sequence, worker.tiles[t], s_.block_keys(sequence, block), 0, grads, of_block, wants_dq(), worker);
    }
    for (int t = 0; wants_dq() && t < count; ++t) write_dq(call, sequence, worker.tiles[t]);
  }

  void write_dq(const Call& call, const Sequence& sequence, const Tile& state) const {
    alignas(64) Real factor[max_lanes];
    std::fill_n(factor, max_lanes, static_cast<Real>(s_.problem.scale));
    for (int lane = 0; state.any_empty && lane < state.tile->lanes(); ++lane)
      if (state.lse[lane] == std::numeric_limits<Real>::infinity())
        for (int d = 0; d < s_.dim; ++d) state.dq[d * s_.ops.tile_lanes + lane] = 0;
    s_.ops.write_lanes(state.dq, s_.dim, factor, LanePointers(call.dq, sequence, *state.tile).out(padded_lanes(*state.tile)));
  }

 protected:
  const BackwardChoice choice_;
  const ParamGradPlan grads_;
  const int tiles_per_step_;
  const KeyRowSums<Real> sums_;
  const BackwardBlocks<Real> blocks_;
};

}  // namespace foveal::cpu
