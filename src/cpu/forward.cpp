// The forward pass: a task takes a few tiles of lanes past all the kv blocks that they need. For each block and tile
//
//   S^T = K Q^T;   S^T = score_mod, mask;   P^T = exp2(S^T - max), sum += column sums;   O^T += V^T P^T
//
// and at the end out = O / sum, lse = max + log(sum). Nothing passes between tasks, so the result does not depend on who runs what.
//
// Where there are few tiles and many keys (decoding) the keys are cut into pieces, as many as the shape says, that are merged in order.
#include "cpu/forward.h"

#include <algorithm>
#include <type_traits>

#include "cpu/block_scores.h"
#include "cpu/describe.h"
#include "cpu/nonfinite.h"
#include "cpu/row_forward.h"

namespace foveal::cpu {
namespace {

template <class Real>
class Forward final : public planning::Executable {
 public:
  Forward(const problem::Problem& problem, const Target& target, const BlockOps<Real>& ops, const PlanOptions& options)
      : s_(problem, target, ops, options), pieces_(choose_pieces()), tiles_per_task_(choose_tiles_per_task()) {
    if (s_.work) tasks_ = s_.work->tasks(tiles_per_task_);
    Carver carver(nullptr);
    carve(carver, nullptr);
    workspace_bytes_ = carver.used();
  }

  bool mask_is_ranges() const { return s_.tape.mask_is_ranges(); }
  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string kernel() const override { return std::string("cpu.") + s_.ops.name + ".forward"; }
  void describe(Explanation& explanation) const override {
    describe_work(s_, explanation, 1.0);
    if (s_.work) describe_tasks(*s_.work, tasks_, explanation.schedule);
    explanation.details.emplace_back("tiles in a task", std::to_string(tiles_per_task_));
    if (pieces_ > 1) explanation.details.emplace_back("pieces of the keys", std::to_string(pieces_));
  }

  void run(const problem::Buffers& buffers, void* workspace, Stream) const override {
    Call call(buffers, s_);
    Carver carver(workspace);
    Slot* slots = carve(carver, &call);
    call.data = s_.tape.bind(buffers.params, call.param_memory);
    if (s_.work) return run_work(call, *s_.work, tasks_, slots);
    std::pmr::monotonic_buffer_resource memory(call.list_memory, list_bytes());
    const Work work = s_.planner.plan(buffers, &memory);
    run_work(call, work, work.tasks(tiles_per_task_), slots);
  }

 private:
  struct Call {
    Call(const problem::Buffers& b, const Setup<Real>& s)
        : q(b.q), out(b.out), k(s.problem, b, b.k), v(s.problem, b, b.v), lse(b.lse), dropout(s.dropout(b.rng)) {
      if (s.problem.sink >= 0) sink = &b.params[static_cast<std::size_t>(s.problem.sink)];
    }
    HeadRows q, out;
    KeyBlocks k, v;
    LaneScalars<Real> lse;
    TileDropout dropout;
    const TensorView* sink = nullptr;
    void* param_memory = nullptr;
    void* list_memory = nullptr;  ///< for work that depends on the data
    Real* pieces = nullptr;       ///< acc, max and sum of each tile and piece, when there are several
    TapeData data;
  };

  /// A tile on its way past the kv blocks.
  struct TileState {
    const LaneTile* tile;
    BlockCursor cursor;
    std::int32_t block;  ///< the next to visit
    LaneSymbols* symbols;
    LaneView lanes;
    void* panel;
    Real *acc, *max, *sum;

    TileState slice(int begin, int end) const {
      TileState part = *this;
      part.lanes = lanes.slice(begin, end);
      part.panel = static_cast<Real*>(panel) + begin;
      part.acc += begin, part.max += begin, part.sum += begin;
      return part;
    }
  };

  struct Slot {
    TileState* states;
    Real *tile, *lane_max, *factor;
    void *weights, *k_scratch, *v_scratch, *v_copy, *tape_scratch;
    void *k_block, *v_block;     ///< of keys in pages, together
    NonfiniteRows* nonfinite_v;  ///< of this block
    KeptPairs* kept;
    std::int32_t *first, *last;

    Slot slice(int begin) const {
      Slot part = *this;
      part.tile += begin, part.lane_max += begin, part.factor += begin, part.first += begin, part.last += begin;
      part.weights = part.tile;
      return part;
    }
  };

  int choose_pieces() const {
    constexpr std::int64_t wanted_tasks = 32, blocks_worth_a_task = 8;
    if (!s_.work && !s_.problem.paged) return 1;
    const std::int64_t blocks = s_.problem.seqlen_kv / s_.ops.block_kv;
    const std::int64_t tiles = s_.work ? tile_places() : s_.planner.likely_tiles();
    return static_cast<int>(
        std::clamp<std::int64_t>(std::min(wanted_tasks / std::max<std::int64_t>(tiles, 1), blocks / blocks_worth_a_task), 1, 32));
  }
  /// Of tiles that are cut into pieces.
  std::int64_t tile_places() const { return s_.work ? static_cast<std::int64_t>(s_.work->tiles.size()) : s_.planner.max_tiles(); }
  int choose_tiles_per_task() const {
    if (pieces_ > 1) return 1;
    // Several tiles share the conversion of a kv block and its way through the caches; their panels and accumulators should stay in L2.
    const std::size_t tile_bytes = s_.ops.panel_bytes(s_.dim) + acc_count() * sizeof(Real);
    const std::int64_t tiles = s_.problem.batch * s_.problem.heads_kv * s_.planner.max_tiles_per_group();
    const auto fit = static_cast<std::int64_t>(std::size_t{512} * 1024 / tile_bytes);
    return static_cast<int>(std::clamp<std::int64_t>(std::min(fit, tiles / 32), 1, 4));
  }
  /// Of work and tasks that are made in each run.
  std::size_t list_bytes() const {
    return s_.work ? 0 : s_.planner.run_bytes() + static_cast<std::size_t>(s_.planner.max_tiles()) * sizeof(Task) + 64;
  }
  std::size_t acc_count() const { return static_cast<std::size_t>(padded_dim(s_.dim_v)) * static_cast<std::size_t>(s_.ops.tile_lanes); }

  std::size_t piece_count() const { return acc_count() + 2 * static_cast<std::size_t>(s_.ops.tile_lanes); }
  /// Lets a state keep its sums where the piece of a tile has its place.
  void place(const Call& call, std::int64_t tile, int piece, TileState& state) const {
    state.acc = call.pieces + static_cast<std::size_t>(tile * pieces_ + piece) * piece_count();
    state.max = state.acc + acc_count();
    state.sum = state.max + s_.ops.tile_lanes;
  }

  Slot* carve(Carver& carver, Call* call) const {
    const auto lanes = static_cast<std::size_t>(s_.ops.tile_lanes), cells = lanes * static_cast<std::size_t>(s_.ops.block_kv);
    void* param_memory = carver.bytes(s_.tape.data_bytes());
    void* list_memory = carver.bytes(list_bytes());
    if (call) call->param_memory = param_memory, call->list_memory = list_memory;
    if (pieces_ > 1) {
      Real* pieces = carver.take<Real>(static_cast<std::size_t>(tile_places()) * static_cast<std::size_t>(pieces_) * piece_count());
      if (call) call->pieces = pieces;
    }
    Slot* slots = carver.take<Slot>(static_cast<std::size_t>(s_.slots()));
    for (int i = 0; i < s_.slots(); ++i) {
      Slot slot;
      slot.states = carver.take<TileState>(static_cast<std::size_t>(tiles_per_task_));
      for (int t = 0; t < tiles_per_task_; ++t) {
        TileState state{};
        state.symbols = carver.take<LaneSymbols>(1);
        state.panel = carver.bytes(s_.ops.panel_bytes(s_.dim));
        state.acc = carver.take<Real>(acc_count());
        state.max = carver.take<Real>(lanes);
        state.sum = carver.take<Real>(lanes);
        if (call) slot.states[t] = state;
      }
      slot.tile = carver.take<Real>(cells);
      slot.weights = s_.ops.weights_in_tile ? slot.tile : carver.bytes(cells * 2);
      slot.lane_max = carver.take<Real>(lanes);
      slot.factor = carver.take<Real>(lanes);
      slot.first = carver.take<std::int32_t>(lanes);
      slot.last = carver.take<std::int32_t>(lanes);
      slot.k_scratch = carver.bytes(s_.ops.operand_bytes(s_.dim));
      slot.v_scratch = carver.bytes(s_.ops.operand_bytes(s_.dim_v));
      slot.v_copy = carver.bytes(s_.copy_bytes(s_.ops.block_kv, s_.dim_v));
      slot.k_block = carver.bytes(KeyBlocks::copy_bytes(s_.problem, s_.ops.block_kv, s_.dim));
      slot.v_block = carver.bytes(KeyBlocks::copy_bytes(s_.problem, s_.ops.block_kv, s_.dim_v));
      slot.nonfinite_v = carver.take<NonfiniteRows>(1);
      slot.kept = carver.take<KeptPairs>(1);
      slot.tape_scratch = carver.bytes(s_.tape.scratch_bytes(s_.ops.block_kv, s_.ops.tile_lanes));
      if (call) slots[i] = slot;
    }
    return slots;
  }

  void run_work(const Call& call, const Work& work, const std::pmr::vector<Task>& tasks, Slot* slots) const {
    const auto task_count = static_cast<std::int64_t>(tasks.size());
    base::parallel_for(s_.executor, task_count * pieces_, [&](std::int64_t i, int slot) {
      const TaskMode mode(s_.ops.enter, s_.ops.leave);
      run_task(call, work, tasks[static_cast<std::size_t>(i / pieces_)], static_cast<int>(i % pieces_), slots[slot]);
    });
    if (pieces_ == 1) return;
    base::parallel_for(s_.executor, task_count, [&](std::int64_t i, int slot) {
      const TaskMode mode(s_.ops.enter, s_.ops.leave);
      merge_pieces(call, work, tasks[static_cast<std::size_t>(i)], slots[slot]);
    });
  }

  void run_task(const Call& call, const Work& work, const Task& task, int piece, Slot& slot) const {
    const TileGroup& group = work.groups[static_cast<std::size_t>(task.group)];
    const Sequence& sequence = work.sequences[static_cast<std::size_t>(group.sequence)];
    const int count = static_cast<int>(task.tile_end - task.tile_begin);
    for (int t = 0; t < count; ++t) {
      if (pieces_ > 1) place(call, task.tile_begin + t, piece, slot.states[t]);
      start(call, work, sequence, work.tiles[static_cast<std::size_t>(task.tile_begin + t)], piece == 0, slot.states[t]);
    }
    const std::int64_t blocks = (sequence.seqlen_kv + s_.ops.block_kv - 1) / s_.ops.block_kv;
    const auto end = static_cast<std::int32_t>(blocks * (piece + 1) / pieces_);
    for (auto from = static_cast<std::int32_t>(blocks * piece / pieces_);;) {
      const std::int32_t block = next_block(slot.states, count, from);
      if (block >= end) break;
      bool drops = s_.drops_anywhere();
      for (int t = 0; t < count; ++t) drops |= slot.states[t].block == block && !slot.states[t].cursor.full();
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
        if (slot.states[t].block == block) visit(call, sequence, slot.states[t], keys, k, v, slot);
      }
    }
    if (pieces_ > 1) return;
    for (int t = 0; t < count; ++t) finish(call, sequence, slot.states[t], slot);
  }

  void start(const Call& call, const Work& work, const Sequence& sequence, const LaneTile& tile, bool with_sink, TileState& state) const {
    state.tile = &tile;
    state.cursor = BlockCursor(work.runs.data() + tile.run_begin, work.runs.data() + tile.run_end);
    state.symbols->fill(tile, sequence, s_.problem);
    state.lanes = {tile.lanes(), state.symbols->head, state.symbols->q_idx};
    const void* rows[max_lanes] = {};
    for_each_lane(
        tile, [&](int lane, std::int32_t head, std::int32_t q) { rows[lane] = call.q.row(sequence.batch, sequence.q_begin + q, head); });
    s_.ops.pack_panel({rows, padded_lanes(tile), call.q.stride, call.q.dtype}, s_.dim, s_.sign, state.panel);
    std::fill_n(state.acc, acc_count(), Real(0));
    start_sums(s_, tile, with_sink ? call.sink : nullptr, state.max, state.sum);
  }

  void visit(const Call& call, const Sequence& sequence, const TileState& state, int keys, const Operand& k, const Operand& v,
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

  void visit_lanes(const Call& call, const Sequence& sequence, const TileState& state, KeyRange all, const Operand& k, const Operand& v,
                   Slot& slot) const {
    const int ld = s_.ops.tile_lanes, valid = state.lanes.count, lanes = state.lanes.padded();
    const BlockLanes at{state.lanes, state.panel, state.block, !state.cursor.full()};
    const auto [range, ranges, lane_max] =
        score_block<Real>(s_, sequence, call.data, at, all, k, {slot.tile, slot.lane_max, slot.first, slot.last, slot.tape_scratch});
    if (range.begin == range.end) return;
    const bool dropout = s_.has_dropout(), nonfinite = slot.nonfinite_v->any();
    if (nonfinite) slot.kept->note(slot.tile, ld, range, valid, ranges);
    const Weights weights{.mix = s_.ops.weights_in_tile ? nullptr : slot.weights};
    if (s_.ops.softmax(slot.tile, range, lanes, s_.scale, ranges, lane_max, state.max, state.sum, slot.factor,
                       dropout || nonfinite ? Weights{} : weights))
      s_.ops.scale_lanes(state.acc, s_.dim_v, lanes, slot.factor);
    if (dropout) {
      const TileFrame kept = s_.frame(sequence, state.lanes, state.block, range);
      apply_dropout<Real>(s_.target, kept, call.dropout, slot.tile + range.begin * ld, nullptr);
    }
    if ((dropout || nonfinite) && weights.mix) s_.ops.round_weights(slot.tile, range, lanes, weights);
    s_.ops.mix(v, slot.weights, range, lanes, s_.dim_v, state.acc);
    if (nonfinite) slot.nonfinite_v->mix(range, *slot.kept, slot.tile, ld, valid, s_.dim_v, dropout, state.acc);
  }

  /// Adds the pieces of a tile into the first, in order.
  void merge_pieces(const Call& call, const Work& work, const Task& task, Slot& slot) const {
    const TileGroup& group = work.groups[static_cast<std::size_t>(task.group)];
    const int lanes = s_.ops.tile_lanes;
    TileState &sum = slot.states[0], part = sum;
    sum.tile = &work.tiles[static_cast<std::size_t>(task.tile_begin)];
    place(call, task.tile_begin, 0, sum);
    for (int piece = 1; piece < pieces_; ++piece) {
      place(call, task.tile_begin, piece, part);
      const auto rescale = [&](TileState& state, const Real* max) {
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
    finish(call, work.sequences[static_cast<std::size_t>(group.sequence)], sum, slot);
  }

  void finish(const Call& call, const Sequence& sequence, TileState& state, Slot& slot) const {
    const LaneTile& tile = *state.tile;
    void* rows[max_lanes] = {};
    for_each_lane(tile, [&](int lane, std::int32_t head, std::int32_t q) {
      const std::int64_t token = sequence.q_begin + q;
      rows[lane] = call.out.row(sequence.batch, token, head);
      const bool empty = state.sum[lane] == 0;
      if (empty)  // not by a factor of 0: what was never weighted may be NaN
        for (int d = 0; d < s_.dim_v; ++d) state.acc[d * s_.ops.tile_lanes + lane] = 0;
      slot.factor[lane] = empty ? Real(0) : Real(1) / state.sum[lane];
      if (call.lse.present())
        call.lse.at(sequence.batch, head, token) =
            empty ? -std::numeric_limits<Real>::infinity() : static_cast<Real>(s_.lse(state.max[lane], state.sum[lane]));
    });
    s_.ops.write_lanes(state.acc, s_.dim_v, slot.factor, {rows, padded_lanes(tile), call.out.stride, call.out.dtype});
  }

  Setup<Real> s_;
  int pieces_, tiles_per_task_;
  std::pmr::vector<Task> tasks_;
  std::size_t workspace_bytes_ = 0;
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
