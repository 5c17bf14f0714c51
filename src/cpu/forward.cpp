// The forward pass: a task takes a few tiles of lanes past all the kv blocks that they need. For each block and tile
//
//   S^T = K Q^T;   S^T = score_mod, mask;   P^T = exp2(S^T - max), sum += column sums;   O^T += V^T P^T
//
// and at the end out = O / sum, lse = max + log(sum). Nothing passes between tasks, so the result does not depend on who runs what.
//
// Decode, with few tiles and many keys, is split-KV: the keys are cut into as many splits as the shape says, which are merged in order.
#include "cpu/forward.h"

#include <algorithm>
#include <type_traits>

#include "cpu/block_scores.h"
#include "cpu/nonfinite.h"
#include "cpu/pass.h"
#include "cpu/row_forward.h"

namespace foveal::cpu {
namespace {

struct ForwardMemory : CallMemory {
  void* splits = nullptr;  ///< acc, max and sum of each tile and split, when there are several
};

template <class Real>
struct ForwardCall : CallOf<ForwardMemory> {
  ForwardCall(const problem::Buffers& b, const Setup<Real>& s)
      : CallOf(b), q(b.q), out(b.out), k(s.problem, b, b.k), v(s.problem, b, b.v), lse(b.lse), dropout(s.dropout(b.rng)) {
    if (s.problem.sink >= 0) sink = &b.params[static_cast<std::size_t>(s.problem.sink)];
  }
  HeadRows q, out;
  KeyBlocks k, v;
  LaneScalars<Real> lse;
  TileDropout dropout;
  const TensorView* sink = nullptr;
};

template <class Real>
struct ForwardTile : TileWalk {
  void* panel;
  Real *acc, *max, *sum;

  ForwardTile slice(int begin, int end) const {
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
class Forward final : public TiledPass<Real, ForwardCall<Real>, ForwardSlot<Real>, Tasks> {
  using Base = TiledPass<Real, ForwardCall<Real>, ForwardSlot<Real>, Tasks>;
  using Base::s_;
  using Call = ForwardCall<Real>;
  using Tile = ForwardTile<Real>;
  using Slot = ForwardSlot<Real>;

 public:
  Forward(const problem::Problem& problem, const Target& target, const BlockOps<Real>& ops, const PlanOptions& options)
      : Base(problem, target, ops, options), splits_(choose_splits()), tiles_per_task_(choose_tiles_per_task()) {
    lay_out(this->memory_, this->slot_, this->tile_);
    this->plan(tiles_per_task_, static_cast<std::size_t>(s_.planner.max_tiles()) * sizeof(Task) + 64);
  }

  bool mask_is_ranges() const { return s_.tape.mask_is_ranges(); }

 private:
  // ---------------------------------------------------------------------------------------------------------------- planning

  std::string path() const override { return "forward"; }
  double products() const override { return 1.0; }
  void describe_strategy(Explanation& explanation) const override {
    explanation.details.emplace_back("tiles in a task", std::to_string(tiles_per_task_));
    if (splits_ > 1) explanation.details.emplace_back("split-KV", std::to_string(splits_) + " splits of the keys");
  }
  Tasks make_lists(const Work& work) const override { return work.tasks(tiles_per_task_); }

  int choose_splits() const {
    constexpr std::int64_t wanted_tasks = 32, blocks_worth_a_task = 8;
    if (!s_.work && !s_.problem.paged) return 1;
    const std::int64_t blocks = s_.problem.seqlen_kv / s_.ops.block_kv;
    const std::int64_t tiles = s_.work ? tile_places() : s_.planner.likely_tiles();
    return static_cast<int>(
        std::clamp<std::int64_t>(std::min(wanted_tasks / std::max<std::int64_t>(tiles, 1), blocks / blocks_worth_a_task), 1, 32));
  }
  /// Of tiles that are cut into splits.
  std::int64_t tile_places() const { return s_.work ? static_cast<std::int64_t>(s_.work->tiles.size()) : s_.planner.max_tiles(); }
  int choose_tiles_per_task() const {
    if (splits_ > 1) return 1;
    // Several tiles share the conversion of a kv block and its way through the caches; their panels and accumulators should stay in L2.
    const std::size_t tile_bytes = s_.ops.panel_bytes(s_.dim) + acc_count() * sizeof(Real);
    const std::int64_t tiles = s_.problem.batch * s_.problem.heads_kv * s_.planner.max_tiles_per_group();
    const auto fit = static_cast<std::int64_t>(std::size_t{512} * 1024 / tile_bytes);
    return static_cast<int>(std::clamp<std::int64_t>(std::min(fit, tiles / 32), 1, 4));
  }
  std::size_t acc_count() const { return static_cast<std::size_t>(padded_dim(s_.dim_v)) * static_cast<std::size_t>(s_.ops.tile_lanes); }

  void lay_out(Layout<ForwardMemory>& memory, Layout<Slot>& slot, Layout<Tile>& tile) const {
    const auto lanes = static_cast<std::size_t>(s_.ops.tile_lanes), cells = lanes * static_cast<std::size_t>(s_.ops.block_kv);
    if (splits_ > 1)
      memory.bytes(&ForwardMemory::splits, static_cast<std::size_t>(tile_places() * splits_) * floats_of_split() * sizeof(Real));

    tile.bytes(&Tile::panel, s_.ops.panel_bytes(s_.dim));
    tile.array(&Tile::acc, acc_count());
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

  std::size_t floats_of_split() const { return acc_count() + 2 * static_cast<std::size_t>(s_.ops.tile_lanes); }
  /// Lets a tile keep its sums where its split has its place.
  void place(const Call& call, std::int64_t number, int split, Tile& tile) const {
    tile.acc = static_cast<Real*>(call.splits) + static_cast<std::size_t>(number * splits_ + split) * floats_of_split();
    tile.max = tile.acc + acc_count();
    tile.sum = tile.max + s_.ops.tile_lanes;
  }

  // ------------------------------------------------------------------------------------------------------------------ running

  bool run_lists(const Call& call, const Tasks& tasks, Slot* slots) const override {
    const auto splits = static_cast<std::size_t>(splits_);
    this->each(tasks.size() * splits, slots,
               [&](std::size_t i, Slot& slot) { run_task(call, tasks[i / splits], static_cast<int>(i % splits), slot); });
    if (splits_ > 1) this->each(tasks.size(), slots, [&](std::size_t i, Slot& slot) { merge_splits(call, tasks[i], slot); });
    return true;
  }

  void run_task(const Call& call, const Task& task, int split, Slot& slot) const {
    const TileGroup& group = call.work->group(task);
    const Sequence& sequence = call.work->sequence(group);
    const int count = static_cast<int>(task.tile_end - task.tile_begin);
    for (int t = 0; t < count; ++t) {
      if (splits_ > 1) place(call, task.tile_begin + t, split, slot.tiles[t]);
      start(call, sequence, call.work->tile(task.tile_begin + t), split == 0, slot.tiles[t]);
    }
    const std::int64_t blocks = sequence.blocks(s_.ops.block_kv);
    const auto end = static_cast<std::int32_t>(blocks * (split + 1) / splits_);
    for (auto from = static_cast<std::int32_t>(blocks * split / splits_);;) {
      const std::int32_t block = next_block(slot.tiles, count, from);
      if (block >= end) break;
      bool drops = s_.drops_anywhere();
      for (int t = 0; t < count; ++t) drops |= slot.tiles[t].block == block && !slot.tiles[t].cursor.full();
      const int keys = s_.block_keys(sequence, block);
      const std::int64_t key = std::int64_t{block} * s_.ops.block_kv;
      const KeyRows k_rows = call.k.block(sequence, key, keys, group.kv_head, slot.k_block);
      const Operand k = s_.ops.prepare(k_rows, keys, s_.dim, true, false, slot.k_scratch);
      KeyRows v_rows = call.v.block(sequence, key, keys, group.kv_head, slot.v_block);
      slot.nonfinite_v->clear();
      if (drops) slot.nonfinite_v->take(s_.ops, keys, s_.dim_v, slot.v_copy, v_rows);
      const Operand v = s_.ops.prepare(v_rows, keys, s_.dim_v, false, true, slot.v_scratch);
      from = block + 1;
      const int next_keys = std::max(0, s_.block_keys(sequence, from));
      const NextRows next_k = call.k.next(sequence, key + s_.ops.block_kv, next_keys, group.kv_head, s_.dim);
      const NextRows next_v = call.v.next(sequence, key + s_.ops.block_kv, next_keys, group.kv_head, s_.dim_v);
      for (int t = 0; t < count; ++t) {
        next_k.fetch(t, count);
        next_v.fetch(t, count);
        if (slot.tiles[t].block == block) visit(call, sequence, slot.tiles[t], keys, k, v, slot);
      }
    }
    if (splits_ > 1) return;
    for (int t = 0; t < count; ++t) finish(call, sequence, slot.tiles[t], slot);
  }

  void start(const Call& call, const Sequence& sequence, const LaneTile& tile, bool with_sink, Tile& state) const {
    state.start(*call.work, sequence, tile, s_.problem);
    const LanePointers rows(call.q, sequence, tile);
    s_.ops.pack_panel({rows.row, padded_lanes(tile), call.q.stride, call.q.dtype}, s_.dim, s_.sign, state.panel);
    std::fill_n(state.acc, acc_count(), Real(0));
    start_sums(s_, tile, with_sink ? call.sink : nullptr, state.max, state.sum);
  }

  void visit(const Call& call, const Sequence& sequence, const Tile& state, int keys, const Operand& k, const Operand& v,
             Slot& slot) const {
    const KeyRange all{0, keys};
    if (state.cursor.full() || !s_.tape.mask_is_ranges()) return visit_lanes(call, sequence, state, all, k, v, slot);
    s_.tape.lane_ranges(s_.frame(sequence, state.lanes, state.block, all), call.data, slot.first, slot.last, slot.tape_scratch);
    const int count = state.lanes.count;
    const int lower = s_.ops.weights_in_tile ? first_slice({slot.first, slot.last}, count, s_.ops.tile_lanes / 2, all) : count;
    if (lower == count) return visit_lanes(call, sequence, state, all, k, v, slot);
    visit_lanes(call, sequence, state.slice(0, lower), all, k, v, slot);
    Slot rest = slot.slice(lower);
    visit_lanes(call, sequence, state.slice(lower, count), all, k, v, rest);
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

  /// Adds the splits of a tile into the first, in order.
  void merge_splits(const Call& call, const Task& task, Slot& slot) const {
    const int lanes = s_.ops.tile_lanes;
    Tile &sum = slot.tiles[0], part = sum;
    sum.tile = &call.work->tile(task.tile_begin);
    place(call, task.tile_begin, 0, sum);
    for (int split = 1; split < splits_; ++split) {
      place(call, task.tile_begin, split, part);
      const auto rescale = [&](Tile& state, const Real* max) {
        for (int lane = 0; lane < lanes; ++lane) {
          slot.factor[lane] = std::exp2(-s_.rise(state.max[lane], max[lane]));
          state.sum[lane] *= slot.factor[lane];
        }
        s_.ops.scale_lanes(state.acc, s_.dim_v, lanes, slot.factor);
      };
      for (int lane = 0; lane < lanes; ++lane) slot.lane_max[lane] = std::max(sum.max[lane], part.max[lane]);
      rescale(sum, slot.lane_max);
      rescale(part, slot.lane_max);
      for (std::size_t i = 0; i < acc_count(); ++i) sum.acc[i] += part.acc[i];
      for (int lane = 0; lane < lanes; ++lane) sum.sum[lane] += part.sum[lane], sum.max[lane] = slot.lane_max[lane];
    }
    finish(call, call.work->sequence(call.work->group(task)), sum, slot);
  }

  void finish(const Call& call, const Sequence& sequence, Tile& state, Slot& slot) const {
    const LaneTile& tile = *state.tile;
    const LanePointers rows(call.out, sequence, tile);
    for_each_lane(tile, [&](int lane, std::int32_t head, std::int32_t q) {
      const bool empty = state.sum[lane] == 0;
      if (empty)  // not by a factor of 0: what was never weighted may be NaN
        for (int d = 0; d < s_.dim_v; ++d) state.acc[d * s_.ops.tile_lanes + lane] = 0;
      slot.factor[lane] = empty ? Real(0) : Real(1) / state.sum[lane];
      if (call.lse.present())
        call.lse.at(sequence.batch, head, sequence.q_begin + q) =
            empty ? -std::numeric_limits<Real>::infinity() : static_cast<Real>(s_.lse(state.max[lane], state.sum[lane]));
    });
    s_.ops.write_lanes(state.acc, s_.dim_v, slot.factor, {rows.row, padded_lanes(tile), call.out.stride, call.out.dtype});
  }

  const int splits_, tiles_per_task_;
};

}  // namespace

template <class Real>
std::unique_ptr<planning::Executable> make_forward(const problem::Problem& problem, const Target& target, const BlockOps<Real>& ops,
                                                   const PlanOptions& options) {
  if constexpr (std::is_same_v<Real, float>) {
    if (row_forward_serves(problem, ops)) {
      auto otherwise = std::make_unique<Forward<Real>>(problem, target, ops, options);
      if (problem.has_mask() && !otherwise->mask_is_ranges()) return otherwise;
      return make_row_forward(problem, target, ops, options, std::move(otherwise));
    }
  }
  return std::make_unique<Forward<Real>>(problem, target, ops, options);
}
template std::unique_ptr<planning::Executable> make_forward(const problem::Problem&, const Target&, const BlockOps<float>&,
                                                            const PlanOptions&);
template std::unique_ptr<planning::Executable> make_forward(const problem::Problem&, const Target&, const BlockOps<double>&,
                                                            const PlanOptions&);

}  // namespace foveal::cpu
