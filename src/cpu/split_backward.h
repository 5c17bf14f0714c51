#pragma once
// The backward pass in two scans: one owns blocks of keys and computes dK and dV, the other owns tiles and computes dQ. Nothing accumulates
// across tasks. In two_scan both are one list of tasks.
#include "cpu/block_backward.h"

namespace foveal::cpu {

template <class Real>
class SplitBackward final : public BlockBackward<Real> {
  using Base = BlockBackward<Real>;
  using Base::blocks_;
  using Base::s_;
  using Base::sums_;
  using typename Base::Call;
  using typename Base::Tile;
  using typename Base::Worker;

 public:
  SplitBackward(std::unique_ptr<const Setup<Real>> setup, const BackwardChoice& choice) : Base(std::move(setup), choice) {
    this->plan_tasks(std::int64_t{blocks_per_key_task} * s_.ops.block_kv, 0, blocks_per_key_task);
  }

 private:
  void run_tasks(const Call& call, const BackwardTasks& lists, Worker* workers) const override {
    const std::size_t units = lists.units.size(), key_tasks = lists.key_tasks.size();
    const auto run_keys = [&](std::size_t t, Worker& worker) { pass_tiles(call, lists.key_tasks[t], worker); };
    const auto run_queries = [&](std::size_t u, Worker& worker) {
      this->for_each_query_task(call, lists, u,
                                [&](const Task& task, const TapeGrads* grads) { this->pass_blocks(call, task, nullptr, grads, worker); });
    };
    if (this->choice_.strategy == BackwardStrategy::split) {
      this->each(key_tasks, workers, run_keys);
      this->each(units, workers, run_queries);
      return;
    }
    const std::size_t rounds = std::max(units, key_tasks);
    this->each(rounds, workers, [&](std::size_t i, Worker& worker) {
      for (std::size_t t = key_tasks * i / rounds; t < key_tasks * (i + 1) / rounds; ++t) run_keys(t, worker);
      for (std::size_t u = units * i / rounds; u < units * (i + 1) / rounds; ++u) run_queries(u, worker);
    });
  }

  /// Runs a few blocks of keys over the tiles that attend to them.
  void pass_tiles(const Call& call, const KeyTask& task, Worker& worker) const {
    const Work& work = *call.work;
    const TileGroup& group = work.groups[static_cast<std::size_t>(task.group)];
    const Sequence& sequence = work.sequence(group);
    const std::int64_t first_key = std::int64_t{task.block_begin} * s_.ops.block_kv;
    const auto keys = std::min<std::int64_t>(sequence.seqlen_kv, std::int64_t{task.block_end} * s_.ops.block_kv) - first_key;
    sums_.clear(worker.own, keys);
    for (std::int32_t block = task.block_begin; block < task.block_end; ++block)
      blocks_.prepare(call, sequence, group.kv_head, block, {}, block - task.block_begin, worker);
    Tile& state = worker.tiles[0];
    for (std::int64_t t = group.tile_begin; t < group.tile_end; ++t) {
      const LaneTile& tile = work.tile(t);
      if (work.blocks(tile).next(task.block_begin) >= task.block_end) continue;
      blocks_.start(call, sequence, tile, true, worker, state);
      for (std::int32_t block = task.block_begin; (block = next_block(&state, 1, block)) < task.block_end; ++block) {
        const int at = block - task.block_begin;
        blocks_.visit(call, sequence, state, s_.block_keys(sequence, block), at, nullptr,
                      sums_.at(worker.own, std::int64_t{at} * s_.ops.block_kv), false, worker);
      }
    }
    sums_.write(call, sequence, group.kv_head, first_key, keys, worker.own);
  }
};

}  // namespace foveal::cpu
