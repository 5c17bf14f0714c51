// The forward pass: a task runs a few tiles of lanes over all KV blocks that they need. For each block and tile
//
//   S^T = K Q^T;   S^T = score_mod, mask;   P^T = exp2(S^T - max), sum += column sums;   O^T += V^T P^T
//
// and at the end out = O / sum, lse = max + log(sum). Tasks are independent, so the result does not depend on the number of threads.
#include "cpu/forward.h"

#include <algorithm>
#include <type_traits>

#include "cpu/forward_blocks.h"
#include "cpu/packed_forward.h"

namespace foveal::cpu {
namespace {

template <class Real>
class Forward final : public ForwardPass<Real, ForwardCall<Real>, ForwardWorker<Real>> {
  using Base = ForwardPass<Real, ForwardCall<Real>, ForwardWorker<Real>>;
  using Base::s_;
  using Call = ForwardCall<Real>;
  using Tile = ForwardTile<Real>;
  using Worker = ForwardWorker<Real>;

 public:
  explicit Forward(std::unique_ptr<const Setup<Real>> setup) : Base(std::move(setup)), blocks_(s_), splits_(s_, blocks_.tile_bytes()) {
    this->memory_.bytes(&ForwardMemory::splits, splits_.bytes());
    blocks_.lay_out(this->worker_, this->tile_);
    if (splits_.heads() > 1)
      this->plan_tasks_of_heads(splits_.heads());
    else
      this->plan_tasks(splits_.several() ? 1 : this->tiles_per_task(blocks_.tile_bytes(), 32, 4));
  }

 private:
  // ---------------------------------------------------------------------------------------------------------------- planning

  std::string path() const override { return s_.ops.lane_multiple == 1 ? "decode" : "forward"; }  // 1: DecodeOps
  void describe_strategy(Explanation& explanation) const override {
    Base::describe_strategy(explanation);
    if (splits_.several()) explanation.details.emplace_back("split-KV", std::to_string(splits_.count()) + " splits of the keys");
    if (splits_.heads() > 1) explanation.details.emplace_back("prefetch", splits_.prefetches() ? "of the next block of all heads" : "none");
  }

  // ------------------------------------------------------------------------------------------------------------------ running

  bool run_lists(const Call& call, const Tasks& tasks, Worker* workers) const override {
    const auto splits = static_cast<std::size_t>(splits_.count());
    this->each(tasks.size() * splits, workers,
               [&](std::size_t i, Worker& worker) { run_task(call, tasks[i / splits], static_cast<int>(i % splits), worker); });
    if (!splits_.several()) return true;
    this->each(tasks.size(), workers, [&](std::size_t i, Worker& worker) {
      const Sequence& sequence = call.work->sequence(call.work->group(tasks[i]));
      for (std::int64_t t = tasks[i].tile_begin; t < tasks[i].tile_end; ++t) {
        const LaneTile& tile = call.work->tile(t);
        splits_.merge(call.splits, t, tile.lanes(), worker.tiles[0], worker.factor);
        blocks_.finish(call, sequence, tile, worker.tiles[0], worker);
      }
    });
    return true;
  }

  void run_task(const Call& call, const Task& task, int split, Worker& worker) const {
    const Sequence& sequence = call.work->sequence(call.work->group(task));
    const int count = static_cast<int>(task.tile_end - task.tile_begin);
    for (int t = 0; t < count; ++t) blocks_.start(call, sequence, call.work->tile(task.tile_begin + t), split == 0, worker.tiles[t]);
    const std::int64_t blocks = sequence.blocks(s_.ops.block_kv);
    const auto end = static_cast<std::int32_t>(blocks * (split + 1) / splits_.count());
    for (auto block = static_cast<std::int32_t>(blocks * split / splits_.count()); (block = next_block(worker.tiles, count, block)) < end;
         ++block)
      visit_heads(call, task, block, worker);
    for (int t = 0; t < count; ++t) {
      const Tile& tile = worker.tiles[t];
      if (splits_.several())
        splits_.save(call.splits, task.tile_begin + t, split, tile.lanes.count, tile);
      else
        blocks_.finish(call, sequence, *tile.tile, tile, worker);
    }
  }

  /// A block of keys of each of the task's kv heads, and the tiles that visit it. Part by part, the next block of all heads is prefetched.
  void visit_heads(const Call& call, const Task& task, std::int32_t block, Worker& worker) const {
    const Sequence& sequence = call.work->sequence(call.work->group(task));
    const int first_head = call.work->group(task).kv_head, count = static_cast<int>(task.tile_end - task.tile_begin);
    const int heads = std::min(splits_.heads(), static_cast<int>(s_.problem.heads_kv) - first_head);
    const std::int64_t next = std::int64_t{block + 1} * s_.ops.block_kv, keys = std::max(0, s_.block_keys(sequence, block + 1));
    for (std::int64_t t = 0, g = task.group; t < count; ++g) {
      const TileGroup& group = call.work->groups[static_cast<std::size_t>(g)];
      Tile *const begin = worker.tiles + t, *const end = worker.tiles + std::min(task.tile_end, group.tile_end) - task.tile_begin;
      const bool visited = std::any_of(begin, end, [&](const Tile& tile) { return tile.block == block; });
      if (splits_.prefetches()) {
        const std::int64_t from = next + keys * t / count, to = next + keys * (end - worker.tiles) / count;
        call.k.fetch(sequence, from, to, first_head, heads * s_.dim);
        call.v.fetch(sequence, from, to, first_head, heads * s_.dim_v);
      }
      if (visited) {
        const bool drops = s_.drops_anywhere() || any_partial(begin, static_cast<int>(end - begin), block);
        blocks_.prepare(call, sequence, group.kv_head, block, drops, worker);
      }
      for (const Tile* tile = begin; tile != end; ++tile, ++t)
        if (tile->block == block) blocks_.visit(call, sequence, *tile, worker);
    }
  }

  const ForwardBlocks<Real> blocks_;
  const SplitKv<Real> splits_;
};

/// The target's table, or the one for tiles of few lanes: one query of a few heads. (seqlen_q is 0 where it is not known.)
template <class Real>
const BlockOps<Real>& ops_for(const problem::Problem& problem, const Target& target, const BlockOps<Real>& ops) {
  const BlockOps<Real>* const decode = decode_ops<Real>(target, problem.dtype, problem.group_size * problem.seqlen_q);
  return decode ? *decode : ops;
}

}  // namespace

template <class Real>
std::unique_ptr<planning::Executable> make_forward(const problem::Problem& problem, const Target& target, const BlockOps<Real>& ops,
                                                   const PlanOptions& options) {
  auto setup = std::make_unique<const Setup<Real>>(problem, target, ops_for(problem, target, ops), options);
  if constexpr (std::is_same_v<Real, float>)
    if (packed_forward_serves(*setup)) {
      const PackedForm form = setup->packed_form();
      return make_packed_forward(problem, target, ops, options, form, std::make_unique<Forward<Real>>(std::move(setup)));
    }
  return std::make_unique<Forward<Real>>(std::move(setup));
}
template std::unique_ptr<planning::Executable> make_forward(const problem::Problem&, const Target&, const BlockOps<float>&,
                                                            const PlanOptions&);
template std::unique_ptr<planning::Executable> make_forward(const problem::Problem&, const Target&, const BlockOps<double>&,
                                                            const PlanOptions&);

}  // namespace foveal::cpu
