#pragma once
// What the forward passes share: tensors, tasks of a few tiles that share keys in cache, and the end of the softmax.
#include <algorithm>
#include <limits>

#include "cpu/pass.h"

namespace foveal::cpu {

template <class Real, class Memory>
struct ForwardCallOf : CallOf<Real, Memory> {
  ForwardCallOf(const problem::Buffers& b, const Setup<Real>& s) : CallOf<Real, Memory>(b, s), lse(b.lse) {
    if (s.problem.sink >= 0) sink = &b.params[static_cast<std::size_t>(s.problem.sink)];
  }
  LaneScalars<Real> lse;
  const TensorView* sink = nullptr;
};

/// factor = 1 / sum of each lane, 0 for one that attends to nothing. Writes lse: lse(lane), or -inf.
template <class Real, class Call, class Lse>
void finish_sums(const Call& call, const Sequence& sequence, const LaneTile& tile, const Real* sum, Real* factor, Lse&& lse) {
  for_each_lane(tile, [&](int lane, std::int32_t head, std::int32_t q) {
    const bool empty = sum[lane] == 0;
    factor[lane] = empty ? Real(0) : Real(1) / sum[lane];
    if (call.lse.present())
      call.lse.at(sequence.batch, head, sequence.q_begin + q) =
          empty ? -std::numeric_limits<Real>::infinity() : static_cast<Real>(lse(lane));
  });
}

template <class Real, class Call, class Worker>
class ForwardPass : public TiledPass<Real, Call, Worker, Tasks> {
  using Base = TiledPass<Real, Call, Worker, Tasks>;

 protected:
  using Base::Base;
  using Base::s_;

  void plan_tasks(int tiles_per_task) {
    tiles_per_task_ = tiles_per_task;
    this->plan(tiles_per_task, list_bytes());
  }
  /// All tiles of some kv heads.
  void plan_tasks_of_heads(int heads) {
    tiles_per_task_ = heads * static_cast<int>(s_.planner.max_tiles_per_group()), heads_per_task_ = heads;
    this->plan(tiles_per_task_, list_bytes());
  }
  /// As many tiles, up to `most`, as fit in L2 with their state while there are still `tasks` tasks.
  int tiles_per_task(std::size_t tile_bytes, std::int64_t tasks, std::int64_t most) const {
    const auto fit = static_cast<std::int64_t>(l2_share / tile_bytes);
    const std::int64_t tiles = s_.problem.batch * s_.problem.heads_kv * s_.planner.max_tiles_per_group();
    return static_cast<int>(std::clamp<std::int64_t>(std::min(fit, tiles / tasks), 1, most));
  }

  double products() const final { return 1.0; }
  void describe_strategy(Explanation& explanation) const override {
    explanation.details.emplace_back("tiles in a task", std::to_string(tiles_per_task_));
    if (heads_per_task_ > 1) explanation.details.emplace_back("kv heads in a task", std::to_string(heads_per_task_));
  }
  Tasks make_lists(const Work& work) const final {
    return heads_per_task_ > 1 ? work.tasks_of_groups(heads_per_task_) : work.tasks(tiles_per_task_);
  }

 private:
  std::size_t list_bytes() const { return static_cast<std::size_t>(s_.planner.max_tiles()) * sizeof(Task) + 64; }

  int tiles_per_task_ = 1, heads_per_task_ = 1;
};

}  // namespace foveal::cpu
