// The forward pass: a task takes a few tiles of lanes past all the kv blocks that they need. For each block and tile
//
//   S^T = K Q^T;   S^T = score_mod, mask;   P^T = exp2(S^T - max), sum += column sums;   O^T += V^T P^T
//
// and at the end out = O / sum, lse = max + log(sum). Nothing passes between tasks, so the result does not depend on who runs what.
#include "cpu/forward.h"

#include <algorithm>
#include <type_traits>

#include "cpu/block_scores.h"
#include "cpu/forward_pass.h"
#include "cpu/nonfinite.h"
#include "cpu/row_forward.h"
#include "cpu/split_kv.h"

namespace foveal::cpu {
namespace {

struct ForwardMemory : CallMemory {
  void* splits = nullptr;  ///< acc, max and sum of each tile and split, when there are several
};

template <class Real>
struct ForwardCall : ForwardCallOf<Real, ForwardMemory> {
  ForwardCall(const problem::Buffers& b, const Setup<Real>& s) : ForwardCallOf<Real, ForwardMemory>(b, s), dropout(s.dropout(b.rng)) {}
  TileDropout dropout;
};

template <class Real>
struct ForwardTile : TileWalk, TileSums<Real> {
  void* panel;

  ForwardTile slice(const Setup<Real>&, int begin, int end) const {
    ForwardTile part = *this;
    part.lanes = lanes.slice(begin, end);
    part.panel = static_cast<Real*>(panel) + begin;
    part.acc += begin, part.max += begin, part.sum += begin;
    return part;
  }
};

template <class Real>
struct ForwardSlot : SlotOf<ForwardTile<Real>> {
  Real *scores, *lane_max, *factor;
  void *weights, *k_scratch, *v_scratch, *v_copy;
  void *k_block, *v_block;     ///< of keys in pages, together
  NonfiniteRows* nonfinite_v;  ///< of this block
  KeptPairs* kept;
  std::int32_t *first, *last;

  ForwardSlot slice(int begin) const {
    ForwardSlot part = *this;
    part.scores += begin, part.lane_max += begin, part.factor += begin, part.first += begin, part.last += begin;
    part.weights = part.scores;
    return part;
  }
};

template <class Real>
class Forward final : public ForwardPass<Real, ForwardCall<Real>, ForwardSlot<Real>> {
  using Base = ForwardPass<Real, ForwardCall<Real>, ForwardSlot<Real>>;
  using Base::s_;
  using Call = ForwardCall<Real>;
  using Tile = ForwardTile<Real>;
  using Slot = ForwardSlot<Real>;

 public:
  explicit Forward(std::unique_ptr<const Setup<Real>> setup) : Base(std::move(setup)), splits_(s_) {
    lay_out(this->memory_, this->slot_, this->tile_);
    const std::size_t tile_bytes = s_.ops.panel_bytes(s_.dim) + splits_.acc_count() * sizeof(Real);
    this->plan_tasks(splits_.several() ? 1 : this->tiles_per_task(tile_bytes, 32, 4));
  }

 private:
  // ---------------------------------------------------------------------------------------------------------------- planning

  std::string path() const override { return "forward"; }
  void describe_strategy(Explanation& explanation) const override {
    Base::describe_strategy(explanation);
    if (splits_.several()) explanation.details.emplace_back("split-KV", std::to_string(splits_.count()) + " splits of the keys");
  }

  void lay_out(Layout<ForwardMemory>& memory, Layout<Slot>& slot, Layout<Tile>& tile) const {
    const auto lanes = static_cast<std::size_t>(s_.ops.tile_lanes), cells = lanes * static_cast<std::size_t>(s_.ops.block_kv);
    memory.bytes(&ForwardMemory::splits, splits_.bytes());

    tile.bytes(&Tile::panel, s_.ops.panel_bytes(s_.dim));
    tile.array(&Tile::acc, splits_.acc_count());
    tile.array(&Tile::max, lanes);
    tile.array(&Tile::sum, lanes);

    slot.array(&Slot::scores, cells);
    if (s_.ops.weights_in_tile)
      slot.share(&Slot::weights, &Slot::scores);
    else
      slot.bytes(&Slot::weights, cells * 2);
    slot.array(&Slot::lane_max, lanes);
    slot.array(&Slot::factor, lanes);
    slot.array(&Slot::first, lanes);
    slot.array(&Slot::last, lanes);
    slot.bytes(&Slot::k_scratch, s_.ops.operand_bytes(s_.dim));
    slot.bytes(&Slot::v_scratch, s_.ops.operand_bytes(s_.dim_v));
    slot.bytes(&Slot::v_copy, s_.copy_bytes(s_.ops.block_kv, s_.dim_v));
    slot.bytes(&Slot::k_block, KeyBlocks::copy_bytes(s_.problem, s_.ops.block_kv, s_.dim));
    slot.bytes(&Slot::v_block, KeyBlocks::copy_bytes(s_.problem, s_.ops.block_kv, s_.dim_v));
    slot.array(&Slot::nonfinite_v, 1);
    slot.array(&Slot::kept, 1);
  }

  // ------------------------------------------------------------------------------------------------------------------ running

  bool run_lists(const Call& call, const Tasks& tasks, Slot* slots) const override {
    const auto splits = static_cast<std::size_t>(splits_.count());
    this->each(tasks.size() * splits, slots,
               [&](std::size_t i, Slot& slot) { run_task(call, tasks[i / splits], static_cast<int>(i % splits), slot); });
    if (!splits_.several()) return true;
    this->each(tasks.size(), slots, [&](std::size_t i, Slot& slot) {
      const std::int64_t tile = tasks[i].tile_begin;
      finish(call, call.work->sequence(call.work->group(tasks[i])), call.work->tile(tile),
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
      start(call, sequence, call.work->tile(task.tile_begin + t), split == 0, slot.tiles[t]);
    }
    const std::int64_t blocks = sequence.blocks(s_.ops.block_kv);
    const auto end = static_cast<std::int32_t>(blocks * (split + 1) / splits_.count());
    for (auto block = static_cast<std::int32_t>(blocks * split / splits_.count()); (block = next_block(slot.tiles, count, block)) < end;
         ++block) {
      const bool drops = s_.drops_anywhere() || any_partial(slot.tiles, count, block);
      const int keys = s_.block_keys(sequence, block);
      const std::int64_t key = std::int64_t{block} * s_.ops.block_kv;
      const KeyRows k_rows = call.k.block(sequence, key, keys, group.kv_head, slot.k_block);
      const Operand k = s_.ops.prepare(k_rows, keys, s_.dim, true, false, slot.k_scratch);
      KeyRows v_rows = call.v.block(sequence, key, keys, group.kv_head, slot.v_block);
      slot.nonfinite_v->clear();
      if (drops) slot.nonfinite_v->take(s_.ops, keys, s_.dim_v, slot.v_copy, v_rows);
      const Operand v = s_.ops.prepare(v_rows, keys, s_.dim_v, false, true, slot.v_scratch);
      const NextKeys next = s_.next_keys(call.k, call.v, sequence, group.kv_head, block + 1);
      for (int t = 0; t < count; ++t) {
        const Tile& state = slot.tiles[t];
        next.fetch(t, count);
        if (state.block != block) continue;
        for_each_slice(s_, sequence, call.data, state, keys, slot, [&](const Tile& part, Slot& at) {
          visit_lanes(call, sequence, part, {0, keys}, k, v, at);
        });
      }
    }
    if (splits_.several()) return;
    for (int t = 0; t < count; ++t) finish(call, sequence, *slot.tiles[t].tile, slot.tiles[t], slot);
  }

  void start(const Call& call, const Sequence& sequence, const LaneTile& tile, bool with_sink, Tile& state) const {
    state.start(*call.work, sequence, tile, s_.problem);
    s_.ops.pack_panel(LanePointers(call.q, sequence, tile).in(padded_lanes(tile)), s_.dim, s_.sign, state.panel);
    std::fill_n(state.acc, splits_.acc_count(), Real(0));
    start_sums(s_, tile, with_sink ? call.sink : nullptr, state.max, state.sum);
  }

  void visit_lanes(const Call& call, const Sequence& sequence, const Tile& state, KeyRange all, const Operand& k, const Operand& v,
                   Slot& slot) const {
    const int ld = s_.ops.tile_lanes, valid = state.lanes.count, lanes = state.lanes.padded();
    const BlockLanes at{state.lanes, state.panel, state.block, !state.cursor.full()};
    const auto [range, ranges, lane_max] =
        score_block<Real>(s_, sequence, call.data, at, all, k, {slot.scores, slot.lane_max, slot.first, slot.last, slot.tape_scratch});
    if (range.begin == range.end) return;
    const bool dropout = s_.has_dropout(), nonfinite = slot.nonfinite_v->any();
    if (nonfinite) slot.kept->note(slot.scores, ld, range, valid, ranges);
    const Weights weights{.mix = s_.ops.weights_in_tile ? nullptr : slot.weights};
    if (s_.ops.softmax(slot.scores, range, lanes, s_.scale, ranges, lane_max, state.max, state.sum, slot.factor,
                       dropout || nonfinite ? Weights{} : weights))
      s_.ops.scale_lanes(state.acc, s_.dim_v, lanes, slot.factor);
    if (dropout) {
      const TileFrame kept = s_.frame(sequence, state.lanes, state.block, range);
      apply_dropout<Real>(s_.target, kept, call.dropout, slot.scores + range.begin * ld, nullptr);
    }
    if ((dropout || nonfinite) && weights.mix) s_.ops.round_weights(slot.scores, range, lanes, weights);
    s_.ops.mix(v, slot.weights, range, lanes, s_.dim_v, state.acc);
    if (nonfinite) slot.nonfinite_v->mix(range, *slot.kept, slot.scores, ld, valid, s_.dim_v, dropout, state.acc);
  }

  void finish(const Call& call, const Sequence& sequence, const LaneTile& tile, const TileSums<Real>& sums, Slot& slot) const {
    this->finish_sums(call, sequence, tile, sums.sum, slot.factor, [&](int lane) { return s_.lse(sums.max[lane], sums.sum[lane]); });
    for (int lane = 0; lane < tile.lanes(); ++lane)
      if (sums.sum[lane] == 0)  // not by a factor of 0: what was never weighted may be NaN
        for (int d = 0; d < s_.dim_v; ++d) sums.acc[d * s_.ops.tile_lanes + lane] = 0;
    s_.ops.write_lanes(sums.acc, s_.dim_v, slot.factor, LanePointers(call.out, sequence, tile).out(padded_lanes(tile)));
  }

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
