#pragma once
// The fused backward pass: a task runs the tiles of one kv head, or a fixed share of them, over the blocks of keys. dQ stays with its tile;
// dK and dV accumulate over the task, then over shares in order.
#include "cpu/block_backward.h"

namespace foveal::cpu {

template <class Real>
class FusedBackward final : public BlockBackward<Real> {
  using Base = BlockBackward<Real>;
  using Base::s_;
  using Base::sums_;
  using typename Base::Call;
  using typename Base::Worker;

 public:
  FusedBackward(std::unique_ptr<const Setup<Real>> setup, const BackwardChoice& choice) : Base(std::move(setup), choice) {
    const std::int64_t keys = s_.problem.seqlen_kv > 0 ? s_.problem.seqlen_kv : s_.problem.total_kv;
    this->plan_tasks(shares() > 1 ? 0 : keys + s_.ops.block_kv, shares() > 1 ? shares() * sums_.rows() : 0, 1);
  }

 private:
  std::int64_t shares() const { return this->choice_.shares; }

  void run_tasks(const Call& call, const BackwardTasks& lists, Worker* workers) const override {
    this->each(lists.units.size(), workers, [&](std::size_t u, Worker& worker) {
      this->for_each_query_task(call, lists, u, [&](const Task& task, const TapeGrads* grads) { run_task(call, task, grads, worker); });
    });
    if (shares() == 1 || !this->wants_keys()) return;
    const Work& work = *call.work;
    std::int64_t longest = 0;
    for (const TileGroup& group : work.groups) longest = std::max<std::int64_t>(longest, work.sequence(group).seqlen_kv);
    constexpr std::int64_t keys_at_once = 256;
    this->each_chunk(work, workers, longest, keys_at_once, [&](std::size_t g, std::int64_t key) {
      const Sequence& sequence = work.sequence(work.groups[g]);
      const std::int64_t keys = std::min(keys_at_once, sequence.seqlen_kv - key);
      if (keys <= 0) return;
      const KeySums<Real> sums = sums_.at(call.shared, sums_.row(sequence, work.groups[g].kv_head) + key);
      sums_.add(sums, keys, shares(), sums_.rows());
      sums_.write(call, sequence, work.groups[g].kv_head, key, keys, sums);
    });
  }

  void run_task(const Call& call, const Task& task, const TapeGrads* grads, Worker& worker) const {
    const TileGroup& group = call.work->group(task);
    const Sequence& sequence = call.work->sequence(group);
    const KeySums<Real> sums =
        shares() > 1 ? sums_.at(call.shared, task.share * sums_.rows() + sums_.row(sequence, group.kv_head)) : worker.own;
    sums_.clear(sums, sequence.seqlen_kv);
    this->pass_blocks(call, task, &sums, grads, worker);
    if (shares() == 1) sums_.write(call, sequence, group.kv_head, 0, sequence.seqlen_kv, sums);
  }
};

}  // namespace foveal::cpu
