// The forward pass: a task takes a few tiles of lanes past all the kv blocks that they need. For each block and tile
//
//   S^T = K Q^T;   S^T = score_mod, mask;   P^T = exp2(S^T - max), sum += column sums;   O^T += V^T P^T
//
// and at the end out = O / sum, lse = max + log(sum). Nothing passes between tasks, so the result does not depend on who runs what.
#include "cpu/forward.h"

#include <type_traits>

#include "cpu/forward_blocks.h"
#include "cpu/row_forward.h"

namespace foveal::cpu {
namespace {

template <class Real>
class Forward final : public ForwardPass<Real, ForwardCall<Real>, ForwardSlot<Real>> {
  using Base = ForwardPass<Real, ForwardCall<Real>, ForwardSlot<Real>>;
  using Base::s_;
  using Call = ForwardCall<Real>;
  using Tile = ForwardTile<Real>;
  using Slot = ForwardSlot<Real>;

 public:
  explicit Forward(std::unique_ptr<const Setup<Real>> setup) : Base(std::move(setup)), blocks_(s_), splits_(s_) {
    this->memory_.bytes(&ForwardMemory::splits, splits_.bytes());
    blocks_.lay_out(this->slot_, this->tile_);
    this->plan_tasks(splits_.several() ? 1 : this->tiles_per_task(blocks_.tile_bytes(), 32, 4));
  }

 private:
  // ---------------------------------------------------------------------------------------------------------------- planning

  std::string path() const override { return "forward"; }
  void describe_strategy(Explanation& explanation) const override {
    Base::describe_strategy(explanation);
    if (splits_.several()) explanation.details.emplace_back("split-KV", std::to_string(splits_.count()) + " splits of the keys");
  }

  // ------------------------------------------------------------------------------------------------------------------ running

  bool run_lists(const Call& call, const Tasks& tasks, Slot* slots) const override {
    const auto splits = static_cast<std::size_t>(splits_.count());
    this->each(tasks.size() * splits, slots,
               [&](std::size_t i, Slot& slot) { run_task(call, tasks[i / splits], static_cast<int>(i % splits), slot); });
    if (!splits_.several()) return true;
    this->each(tasks.size(), slots, [&](std::size_t i, Slot& slot) {
      const std::int64_t tile = tasks[i].tile_begin;
      blocks_.finish(call, call.work->sequence(call.work->group(tasks[i])), call.work->tile(tile),
                     splits_.merge(call.splits, tile, slot.lane_max, slot.factor), slot);
    });
    return true;
  }

  void run_task(const Call& call, const Task& task, int split, Slot& slot) const {
    const TileGroup& group = call.work->group(task);
    const Sequence& sequence = call.work->sequence(group);
    const int count = static_cast<int>(task.tile_end - task.tile_begin);
    for (int t = 0; t < count; ++t) {
      if (splits_.several()) static_cast<TileSums<Real>&>(slot.tiles[t]) = splits_.sums(call.splits, task.tile_begin + t, split);
      blocks_.start(call, sequence, call.work->tile(task.tile_begin + t), split == 0, slot.tiles[t]);
    }
    const std::int64_t blocks = sequence.blocks(s_.ops.block_kv);
    const auto end = static_cast<std::int32_t>(blocks * (split + 1) / splits_.count());
    for (auto block = static_cast<std::int32_t>(blocks * split / splits_.count()); (block = next_block(slot.tiles, count, block)) < end;
         ++block) {
      blocks_.prepare(call, sequence, group.kv_head, block, s_.drops_anywhere() || any_partial(slot.tiles, count, block), slot);
      const NextKeys next = s_.next_keys(call.k, call.v, sequence, group.kv_head, block + 1);
      for (int t = 0; t < count; ++t) {
        next.fetch(t, count);
        if (slot.tiles[t].block == block) blocks_.visit(call, sequence, slot.tiles[t], slot);
      }
    }
    if (splits_.several()) return;
    for (int t = 0; t < count; ++t) blocks_.finish(call, sequence, *slot.tiles[t].tile, slot.tiles[t], slot);
  }

  const ForwardBlocks<Real> blocks_;
  const SplitKv<Real> splits_;
};

}  // namespace

template <class Real>
std::unique_ptr<planning::Executable> make_forward(const problem::Problem& problem, const Target& target, const BlockOps<Real>& ops,
                                                   const PlanOptions& options) {
  auto setup = std::make_unique<const Setup<Real>>(problem, target, ops, options);
  const bool masks_by_ranges = !setup->tape.has_mask() || setup->tape.mask_is_ranges();
  auto forward = std::make_unique<Forward<Real>>(std::move(setup));
  if constexpr (std::is_same_v<Real, float>) {
    if (masks_by_ranges && row_forward_serves(problem, ops)) return make_row_forward(problem, target, ops, options, std::move(forward));
  }
  return forward;
}
template std::unique_ptr<planning::Executable> make_forward(const problem::Problem&, const Target&, const BlockOps<float>&,
                                                            const PlanOptions&);
template std::unique_ptr<planning::Executable> make_forward(const problem::Problem&, const Target&, const BlockOps<double>&,
                                                            const PlanOptions&);

}  // namespace foveal::cpu
