// The backward pass. For each tile of lanes and kv block
//
//   S^T = K Q^T;  P^T = exp2(S^T - lse);  dP^T = V dO^T;  dS^T = P^T (dP^T - delta) score_mod'
//   dV += P^T dO;   dK += dS^T Q;   dQ^T += K^T dS^T                                   where delta = sum over d of dO * O, less dlse
//
// in one of three ways:
//   fused     a task takes the tiles of one kv head (or a fixed share of them) past the kv blocks. dQ stays with its tile; dK and
//             dV are accumulated over the task, and over shares in order. Five products.
//   split     one pass owns kv blocks and makes dK and dV, another owns tiles and makes dQ. Nothing is accumulated between tasks. Seven
//             products.
//   two_scan  the same two, as one list of tasks: each does some kv blocks, then some tiles, so that causal work is level.
// What is added to what, and in which order, follows from the shape alone: results are the same bits for any number of threads. (Where a
// target has TileBackwardOps, tile_backward.cpp runs instead of fused if it can.)
#include "cpu/backward.h"

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "cpu/backward_blocks.h"
#include "cpu/backward_tasks.h"
#include "cpu/block_scores.h"
#include "cpu/tile_backward.h"

namespace foveal::cpu {
namespace {

constexpr std::int64_t wanted_tasks = 16;                    ///< fused: enough for the threads of a desktop; more would cost accumulators
constexpr std::size_t share_limit = std::size_t{128} << 20;  ///< fused: bytes of accumulators that shares may take

template <class Real>
class Backward final : public TiledPass<Real, BackwardCall<Real>, BackwardSlot<Real>, BackwardTasks> {
  using Base = TiledPass<Real, BackwardCall<Real>, BackwardSlot<Real>, BackwardTasks>;
  using Base::s_;
  using Call = BackwardCall<Real>;
  using Tile = LaneState<Real>;
  using Slot = BackwardSlot<Real>;
  using Memory = BackwardMemory<Real>;

 public:
  Backward(const problem::Problem& problem, const Target& target, const BlockOps<Real>& ops, const PlanOptions& options)
      : Base(problem, target, ops, options),
        wants_dq_(problem.dq.present),
        wants_dk_(problem.dk.present),
        wants_dv_(problem.dv.present),
        strategy_(choose_strategy()),
        grads_(s_.problem, shares_),
        tiles_per_step_(choose_tiles_per_step()),
        blocks_(s_, {wants_dq_, wants_dk_, wants_dv_, wants_dq_ || wants_dk_ || !grads_.empty()}) {
    lay_out(this->memory_, this->slot_);
    blocks_.lay_out(this->slot_, this->tile_, fused() ? 1 : blocks_per_key_task);
    this->plan(tiles_per_step_, BackwardTasks::bytes(s_.planner, shares_));
  }

  bool fused() const { return strategy_ == BackwardStrategy::fused; }
  /// There is no mask, or it keeps one range of keys for each query.
  bool masks_by_ranges() const { return !s_.tape.has_mask() || s_.tape.mask_is_ranges(); }

 private:
  // ---------------------------------------------------------------------------------------------------------------- planning

  std::string path() const override { return std::string("backward.") + to_string(strategy_); }
  double products() const override { return fused() ? 2.5 : 3.5; }
  void describe_strategy(Explanation& explanation) const override {
    explanation.strategy = to_string(strategy_);
    explanation.reduction = grads_.reduction();
    explanation.details.emplace_back("strategy because", because_);
    if (fused()) explanation.details.emplace_back("shares of a kv head", std::to_string(shares_));
    explanation.details.emplace_back("tiles in a step", std::to_string(tiles_per_step_));
  }
  BackwardTasks make_lists(const Work& work) const override {
    return {{.strategy = strategy_,
             .shares = shares_,
             .wants_dq = wants_dq_,
             .wants_keys = wants_dk_ || wants_dv_,
             .tiles_per_step = tiles_per_step_,
             .block_kv = s_.ops.block_kv,
             .grads = &grads_},
            work};
  }

  /// And the shares, and why.
  BackwardStrategy choose_strategy() {
    const problem::Problem& p = s_.problem;
    const std::int64_t groups = std::max<std::int64_t>(1, p.batch * p.heads_kv);
    const std::int64_t tiles = s_.planner.max_tiles_per_group();
    const std::int64_t useful = std::clamp<std::int64_t>(tiles / 4, 1, (wanted_tasks + groups - 1) / groups);
    const auto affordable = static_cast<std::int64_t>(share_limit / std::max<std::size_t>(1, acc_bytes(acc_rows_of_all())));
    shares_ = std::clamp<std::int64_t>(affordable, 1, useful);
    because_ = "asked for";
    if (const BackwardStrategy asked = p.attention.backward; asked != BackwardStrategy::automatic) {
      if (asked != BackwardStrategy::fused) shares_ = useful;  // nothing but parameter gradients depends on them
      return asked;
    }
    // Seven products instead of five cost 1.4 times the work: worth it only when accumulators for enough tasks would take too much memory.
    const bool starved = shares_ < useful && groups * shares_ < wanted_tasks / 2;
    because_ = starved ? base::join("accumulators for ", useful, " shares would exceed ", share_limit >> 20, " MiB")
                       : base::join("five products instead of seven; ", groups * shares_, " tasks");
    if (starved) shares_ = useful;
    return starved ? BackwardStrategy::split : BackwardStrategy::fused;
  }

  int choose_tiles_per_step() const {
    const std::size_t lanes = static_cast<std::size_t>(s_.ops.tile_lanes);
    const std::size_t tile_bytes = s_.ops.panel_bytes(s_.dim) + s_.ops.panel_bytes(s_.dim_v) + s_.ops.rows_bytes(s_.dim) +
                                   s_.ops.rows_bytes(s_.dim_v) + lanes * static_cast<std::size_t>(s_.dim) * sizeof(Real);
    return static_cast<int>(std::clamp<std::size_t>(std::size_t{512} * 1024 / tile_bytes, 1, 4));
  }

  int dk_ld() const { return wants_dk_ ? padded_dim(s_.dim) : 0; }
  int dv_ld() const { return wants_dv_ ? padded_dim(s_.dim_v) : 0; }
  std::size_t acc_bytes(std::int64_t rows) const {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(dk_ld() + dv_ld()) * sizeof(Real);
  }
  /// Accumulator rows of all heads of one share; each sequence has a block to spare, because ranges are rounded up.
  std::int64_t acc_rows_of_all() const { return s_.problem.heads_kv * (s_.problem.total_kv + s_.problem.batch * s_.ops.block_kv); }
  std::int64_t acc_row(const Sequence& sequence, std::int32_t kv_head) const {
    const std::int64_t token = s_.problem.ragged_kv() ? sequence.kv_begin : sequence.index * s_.problem.seqlen_kv;
    return kv_head * (s_.problem.total_kv + s_.problem.batch * s_.ops.block_kv) + token + std::int64_t{sequence.index} * s_.ops.block_kv;
  }
  void lay_out(Layout<Memory>& memory, Layout<Slot>& slot) const {
    memory.bytes(&Memory::grads, grads_.workspace_bytes());
    memory.part(&Memory::rows, RowScalars<Real>::layout(s_.problem));
    std::int64_t own_rows = std::int64_t{blocks_per_key_task} * s_.ops.block_kv;
    if (fused()) own_rows = (s_.problem.seqlen_kv > 0 ? s_.problem.seqlen_kv : s_.problem.total_kv) + s_.ops.block_kv;
    if (fused() && shares_ > 1) {
      own_rows = 0;
      memory.array(&Memory::dk_acc, static_cast<std::size_t>(shares_ * acc_rows_of_all() * dk_ld()));
      memory.array(&Memory::dv_acc, static_cast<std::size_t>(shares_ * acc_rows_of_all() * dv_ld()));
    }
    slot.array(&Slot::dk, static_cast<std::size_t>(own_rows * dk_ld()));
    slot.array(&Slot::dv, static_cast<std::size_t>(own_rows * dv_ld()));
  }

  // ------------------------------------------------------------------------------------------------------------------ running

  bool run_lists(const Call& call, const BackwardTasks& lists, Slot* slots) const override {
    const problem::Buffers& buffers = call.buffers;
    const Work& work = *call.work;
    grads_.clear(call.grads, buffers.dparams, s_.executor);
    const auto each = [this, slots](std::size_t tasks, auto&& fn) { this->each(tasks, slots, fn); };
    constexpr std::size_t tiles_per_delta_task = 16;
    each((work.tiles.size() + tiles_per_delta_task - 1) / tiles_per_delta_task, [&](std::size_t i, Slot& slot) {
      fill_rows(call, i * tiles_per_delta_task, std::min(work.tiles.size(), (i + 1) * tiles_per_delta_task), slot);
    });
    call.rows.write_dsink(s_, buffers);

    const std::size_t units = lists.units.size(), key_tasks = lists.key_tasks.size();
    const auto query_unit = [&](std::size_t u, Slot& slot) {
      const TapeGrads grads = grads_.empty() ? TapeGrads{} : grads_.grads(call.grads, buffers.dparams, lists.units[u].partition);
      for (std::size_t t = lists.units[u].begin; t < lists.units[u].end; ++t)
        query_task(call, lists.query_tasks[t], grads_.empty() ? nullptr : &grads, slot);
    };
    const auto key_task = [&](std::size_t t, Slot& slot) { this->key_task(call, lists.key_tasks[t], slot); };
    if (strategy_ == BackwardStrategy::two_scan) {
      const std::size_t rounds = std::max(units, key_tasks);
      each(rounds, [&](std::size_t i, Slot& slot) {
        for (std::size_t t = key_tasks * i / rounds; t < key_tasks * (i + 1) / rounds; ++t) key_task(t, slot);
        for (std::size_t u = units * i / rounds; u < units * (i + 1) / rounds; ++u) query_unit(u, slot);
      });
    } else {
      each(key_tasks, key_task);
      each(units, query_unit);
    }
    if (fused() && shares_ > 1 && (wants_dk_ || wants_dv_)) {
      std::size_t blocks = 0;
      for (const TileGroup& group : work.groups) blocks = std::max(blocks, reduce_chunks(work, group));
      each(work.groups.size() * blocks, [&](std::size_t i, Slot&) { reduce_shares(call, work.groups[i / blocks], i % blocks); });
    }
    // A sequence without queries has no tiles, but its dk and dv are zeros all the same.
    for (const Sequence& sequence : work.sequences)
      if (sequence.seqlen_q == 0) write_zeros(call, sequence);
    grads_.finish(call.grads, buffers.dparams, s_.executor);
    return true;
  }

  void fill_rows(const Call& call, std::size_t tile_begin, std::size_t tile_end, Slot& slot) const {
    const Work& work = *call.work;
    auto group = std::upper_bound(work.groups.begin(), work.groups.end(), static_cast<std::int64_t>(tile_begin),
                                  [](std::int64_t t, const TileGroup& g) { return t < g.tile_end; });
    for (std::size_t t = tile_begin; t < tile_end; ++t) {
      while (static_cast<std::int64_t>(t) >= group->tile_end) ++group;
      const Sequence& sequence = work.sequence(*group);
      if (call.rows.fill(call.buffers, sequence, work.tiles[t], s_.dim_v, s_.ops.row_dots))
        measure(call, sequence, *group, work.tiles[t], slot);
    }
  }

  /// A tile with far rows: their scores once more, for maxima and sums.
  void measure(const Call& call, const Sequence& sequence, const TileGroup& group, const LaneTile& tile, Slot& slot) const {
    Tile& state = slot.tiles[0];
    blocks_.start(call, sequence, tile, false, slot, state);
    Real *max = state.dq, *sum = max + s_.ops.tile_lanes, *factor = sum + s_.ops.tile_lanes, *lane_max = factor + s_.ops.tile_lanes;
    start_sums(s_, tile, s_.problem.sink >= 0 ? &call.buffers.params[static_cast<std::size_t>(s_.problem.sink)] : nullptr, max, sum);
    for (std::int32_t block = 0; (block = state.cursor.next(block)) != BlockCursor::none; ++block) {
      const KeyRange all{0, s_.block_keys(sequence, block)};
      const std::int64_t token = sequence.kv_begin + std::int64_t{block} * s_.ops.block_kv;
      const Operand k = s_.ops.prepare(call.k.keys(sequence.batch, token, group.kv_head), all.end, s_.dim, true, false, slot.k_scratch);
      const bool partial = !state.cursor.full();
      if (partial && s_.tape.mask_is_ranges())
        s_.tape.lane_ranges(s_.frame(sequence, state.lanes, block, all), call.data, slot.first, slot.last, slot.tape_scratch);
      const auto found = score_block<Real>(s_, sequence, call.data, {state.lanes, state.q_panel, block, partial}, all, k,
                                           {slot.p, lane_max, slot.first, slot.last, slot.tape_scratch});
      if (found.range.begin == found.range.end) continue;
      s_.ops.softmax(slot.p, found.range, state.lanes.padded(), s_.scale, found.ranges, found.lane_max, max, sum, factor, {});
    }
    call.rows.measured(s_, sequence, tile, max, sum);
  }

  void write_keys(const Call& call, const Sequence& sequence, std::int32_t kv_head, std::int64_t key, int keys, const Real* dk,
                  const Real* dv) const {
    const std::int64_t token = sequence.kv_begin + key;
    if (wants_dk_)
      s_.ops.write_keys(dk, keys, s_.dim, static_cast<Real>(s_.problem.scale), call.dk.keys_out(sequence.batch, token, kv_head));
    if (wants_dv_) s_.ops.write_keys(dv, keys, s_.dim_v, Real(1), call.dv.keys_out(sequence.batch, token, kv_head));
  }

  // -------------------------------------------------------------------------------------------- tiles past blocks: fused, and dq

  void query_task(const Call& call, const Task& task, const TapeGrads* grads, Slot& slot) const {
    const TileGroup& group = call.work->group(task);
    const Sequence& sequence = call.work->sequence(group);
    Real *dk = slot.dk, *dv = slot.dv;
    if (fused()) {
      if (shares_ > 1) {
        const std::int64_t row = task.share * acc_rows_of_all() + acc_row(sequence, group.kv_head);
        dk = call.dk_acc + row * dk_ld(), dv = call.dv_acc + row * dv_ld();
      }
      std::fill_n(dk, std::int64_t{sequence.seqlen_kv} * dk_ld(), Real(0));
      std::fill_n(dv, std::int64_t{sequence.seqlen_kv} * dv_ld(), Real(0));
    }
    for (std::int64_t t = task.tile_begin; t < task.tile_end; t += tiles_per_step_)
      query_step(call, sequence, group.kv_head, t, std::min(task.tile_end, t + tiles_per_step_), dk, dv, grads, slot);
    if (fused() && shares_ == 1) write_keys(call, sequence, group.kv_head, 0, sequence.seqlen_kv, dk, dv);
  }

  void query_step(const Call& call, const Sequence& sequence, std::int32_t kv_head, std::int64_t tile_begin, std::int64_t tile_end,
                  Real* dk, Real* dv, const TapeGrads* grads, Slot& slot) const {
    const int count = static_cast<int>(tile_end - tile_begin);
    for (int t = 0; t < count; ++t) {
      Tile& state = slot.tiles[t];
      blocks_.start(call, sequence, call.work->tile(tile_begin + t), fused(), slot, state);
      if (wants_dq_) std::fill_n(state.dq, std::int64_t{s_.dim} * s_.ops.tile_lanes, Real(0));
    }
    for (std::int32_t from = 0;;) {
      const std::int32_t block = next_block(slot.tiles, count, from);
      if (block == BlockCursor::none) break;
      const int keys = s_.block_keys(sequence, block);
      const std::int64_t key = std::int64_t{block} * s_.ops.block_kv;
      bool drops = s_.drops_anywhere();
      for (int t = 0; t < count; ++t) drops |= slot.tiles[t].block == block && !slot.tiles[t].cursor.full();
      blocks_.prepare(call, sequence, kv_head, block, wants_dq_, drops, 0, slot);
      const std::int64_t next_token = sequence.kv_begin + key + s_.ops.block_kv;
      const int next_keys = std::max(0, s_.block_keys(sequence, block + 1));
      const NextRows next_k(call.k.keys(sequence.batch, next_token, kv_head), next_keys, s_.dim);
      const NextRows next_v(call.v.keys(sequence.batch, next_token, kv_head), next_keys, s_.dim_v);
      for (int t = 0; t < count; ++t) {
        const Tile& state = slot.tiles[t];
        next_k.fetch(t, count);
        next_v.fetch(t, count);
        if (state.block != block) continue;
        blocks_.visit(call, sequence, state, keys, slot.k[0], slot.v[0], grads, fused() && wants_dk_ ? dk + key * dk_ld() : nullptr,
                      fused() && wants_dv_ ? dv + key * dv_ld() : nullptr, wants_dq_, slot);
      }
      from = block + 1;
    }
    if (!wants_dq_) return;
    for (int t = 0; t < count; ++t) write_dq(call, sequence, slot.tiles[t]);
  }

  void write_dq(const Call& call, const Sequence& sequence, const Tile& state) const {
    void* rows[max_lanes] = {};
    alignas(64) Real factor[max_lanes];
    std::fill_n(factor, max_lanes, static_cast<Real>(s_.problem.scale));
    for_each_lane(*state.tile, [&](int lane, std::int32_t head, std::int32_t q) {
      rows[lane] = call.dq.row(sequence.batch, sequence.q_begin + q, head);
      if (state.any_empty && state.lse[lane] == std::numeric_limits<Real>::infinity())
        for (int d = 0; d < s_.dim; ++d) state.dq[d * s_.ops.tile_lanes + lane] = 0;
    });
    s_.ops.write_lanes(state.dq, s_.dim, factor, {rows, padded_lanes(*state.tile), call.dq.stride, call.dq.dtype});
  }

  static constexpr std::int64_t keys_per_reduction = 256;
  std::size_t reduce_chunks(const Work& work, const TileGroup& group) const {
    const std::int64_t keys = work.sequence(group).seqlen_kv;
    return static_cast<std::size_t>((keys + keys_per_reduction - 1) / keys_per_reduction);
  }

  /// Adds the shares of some keys into the first, in order, and writes them.
  void reduce_shares(const Call& call, const TileGroup& group, std::size_t chunk) const {
    const Sequence& sequence = call.work->sequence(group);
    const std::int64_t key = static_cast<std::int64_t>(chunk) * keys_per_reduction;
    const std::int64_t keys = std::min<std::int64_t>(keys_per_reduction, sequence.seqlen_kv - key);
    if (keys <= 0) return;
    const std::int64_t row = acc_row(sequence, group.kv_head) + key;
    const auto add = [&](Real* acc, int ld) {
      Real* sum = acc + row * ld;
      for (std::int64_t share = 1; share < shares_; ++share) {
        const Real* part = acc + (share * acc_rows_of_all() + row) * ld;
        for (std::int64_t i = 0; i < keys * ld; ++i) sum[i] += part[i];
      }
      return sum;
    };
    Real *dk = add(call.dk_acc, dk_ld()), *dv = add(call.dv_acc, dv_ld());
    write_keys(call, sequence, group.kv_head, key, static_cast<int>(keys), dk, dv);
  }

  void write_zeros(const Call& call, const Sequence& sequence) const {
    alignas(64) Real zeros[512] = {};
    for (std::int32_t head = 0; head < s_.problem.heads_kv; ++head)
      for (std::int32_t key = 0; key < sequence.seqlen_kv; ++key) write_keys(call, sequence, head, key, 1, zeros, zeros);
  }

  // -------------------------------------------------------------------------------------------------- blocks past tiles: dk, dv

  void key_task(const Call& call, const KeyTask& task, Slot& slot) const {
    const TileGroup& group = call.work->groups[static_cast<std::size_t>(task.group)];
    const Sequence& sequence = call.work->sequence(group);
    const std::int64_t first_key = std::int64_t{task.block_begin} * s_.ops.block_kv;
    const auto keys = std::min<std::int64_t>(sequence.seqlen_kv, std::int64_t{task.block_end} * s_.ops.block_kv) - first_key;
    std::fill_n(slot.dk, keys * dk_ld(), Real(0));
    std::fill_n(slot.dv, keys * dv_ld(), Real(0));
    for (std::int32_t block = task.block_begin; block < task.block_end; ++block)
      blocks_.prepare(call, sequence, group.kv_head, block, false, false, block - task.block_begin, slot);
    Tile& state = slot.tiles[0];
    for (std::int64_t t = group.tile_begin; t < group.tile_end; ++t) {
      const LaneTile& tile = call.work->tile(t);
      const mask::Run* runs = call.work->runs.data();
      if (BlockCursor(runs + tile.run_begin, runs + tile.run_end).next(task.block_begin) >= task.block_end) continue;
      blocks_.start(call, sequence, tile, true, slot, state);
      for (state.block = state.cursor.next(task.block_begin); state.block < task.block_end;
           state.block = state.cursor.next(state.block + 1)) {
        const int at = state.block - task.block_begin;
        const std::int64_t row = std::int64_t{at} * s_.ops.block_kv;
        blocks_.visit(call, sequence, state, s_.block_keys(sequence, state.block), slot.k[at], slot.v[at], nullptr,
                      wants_dk_ ? slot.dk + row * dk_ld() : nullptr, wants_dv_ ? slot.dv + row * dv_ld() : nullptr, false, slot);
      }
    }
    write_keys(call, sequence, group.kv_head, first_key, static_cast<int>(keys), slot.dk, slot.dv);
  }

  const bool wants_dq_, wants_dk_, wants_dv_;
  std::string because_;
  std::int64_t shares_ = 1;
  const BackwardStrategy strategy_;
  const ParamGradPlan grads_;
  const int tiles_per_step_;
  const BackwardBlocks<Real> blocks_;
};

}  // namespace

template <class Real>
std::unique_ptr<planning::Executable> make_backward(const problem::Problem& problem, const Target& target, const BlockOps<Real>& ops,
                                                    const PlanOptions& options) {
  auto backward = std::make_unique<Backward<Real>>(problem, target, ops, options);
  if constexpr (std::is_same_v<Real, float>) {
    if (tile_backward_serves(problem, ops) && backward->fused() && backward->masks_by_ranges())
      return make_tile_backward(problem, target, ops, options, std::move(backward));
  }
  return backward;
}
template std::unique_ptr<planning::Executable> make_backward(const problem::Problem&, const Target&, const BlockOps<float>&,
                                                             const PlanOptions&);
template std::unique_ptr<planning::Executable> make_backward(const problem::Problem&, const Target&, const BlockOps<double>&,
                                                             const PlanOptions&);

}  // namespace foveal::cpu
