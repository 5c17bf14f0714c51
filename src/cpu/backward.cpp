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
#include <tuple>
#include <type_traits>

#include "base/check.h"
#include "cpu/block_scores.h"
#include "cpu/describe.h"
#include "cpu/nonfinite.h"
#include "cpu/row_scalars.h"
#include "cpu/tile_backward.h"

namespace foveal::cpu {
namespace {

constexpr int blocks_per_key_task = 4;                       ///< the packing of a tile's panels is shared by so many kv blocks
constexpr std::int64_t wanted_tasks = 16;                    ///< fused: enough for the threads of a desktop; more would cost accumulators
constexpr std::size_t share_limit = std::size_t{128} << 20;  ///< fused: bytes of accumulators that shares may take

template <class Real>
class Backward final : public planning::Executable {
 public:
  Backward(const problem::Problem& problem, const Target& target, const BlockOps<Real>& ops, const PlanOptions& options)
      : s_(problem, target, ops, options) {
    wants_dq_ = problem.dq.present, wants_dk_ = problem.dk.present, wants_dv_ = problem.dv.present;
    choose_strategy();
    grads_ = ParamGradPlan(s_.problem, shares_);
    wants_ds_ = wants_dq_ || wants_dk_ || !grads_.empty();
    tiles_per_step_ = choose_tiles_per_step();
    if (s_.work) lists_.emplace(*this, *s_.work);
    Carver carver(nullptr);
    carve(carver, nullptr);
    workspace_bytes_ = carver.used();
  }

  bool fused() const { return strategy_ == BackwardStrategy::fused; }
  /// There is no mask, or it keeps one range of keys for each query.
  bool masks_by_ranges() const { return !s_.tape.has_mask() || s_.tape.mask_is_ranges(); }

  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string kernel() const override { return std::string("cpu.") + s_.ops.name + ".backward." + to_string(strategy_); }
  void describe(Explanation& explanation) const override {
    describe_work(s_, explanation, strategy_ == BackwardStrategy::fused ? 2.5 : 3.5);
    if (lists_) lists_->describe(*s_.work, explanation.schedule);
    explanation.strategy = to_string(strategy_);
    explanation.reduction = grads_.reduction();
    explanation.details.emplace_back("strategy because", because_);
    if (strategy_ == BackwardStrategy::fused) explanation.details.emplace_back("shares of a kv head", std::to_string(shares_));
    explanation.details.emplace_back("tiles in a step", std::to_string(tiles_per_step_));
  }

  void run(const problem::Buffers& buffers, void* workspace, Stream) const override {
    Call call(buffers, s_);
    Carver carver(workspace);
    Slot* slots = carve(carver, &call);
    call.data = s_.tape.bind(buffers.params, call.param_memory);
    if (s_.work) {
      call.work = &*s_.work;
      return run_lists(buffers, call, *lists_, slots);
    }
    std::pmr::monotonic_buffer_resource memory(call.list_memory, list_bytes());
    const Work work = s_.planner.plan(buffers, &memory);
    call.work = &work;
    run_lists(buffers, call, Lists(*this, work), slots);
  }

 private:
  struct KeyTask {
    std::int64_t group;
    std::int32_t block_begin, block_end;
    std::int64_t cost;
  };
  /// Query tasks [begin, end) that run one after the other.
  struct Unit {
    std::size_t begin, end;
    std::int64_t partition, cost;
  };

  struct Lists {
    Lists(const Backward& b, const Work& work) : query_tasks(work.memory()), units(work.memory()), key_tasks(work.memory()) {
      const bool fused = b.strategy_ == BackwardStrategy::fused;
      if (fused || b.wants_dq_ || !b.grads_.empty()) {
        const bool by_share = fused || !b.grads_.empty();
        query_tasks = by_share ? work.shares(b.shares_) : work.tasks(b.tiles_per_step_);
        if (!by_share && b.strategy_ == BackwardStrategy::two_scan)
          std::sort(query_tasks.begin(), query_tasks.end(), [](const Task& x, const Task& y) { return x.tile_begin < y.tile_begin; });
        make_units(b, work, by_share);
      }
      if (!fused && (b.wants_dk_ || b.wants_dv_)) make_key_tasks(b, work);
    }

    /// Of the passes apart, that over queries.
    void describe(const Work& work, TileSchedule& schedule) const {
      for (std::size_t u = 0; u < units.size(); ++u)
        for (std::size_t t = units[u].begin; t < units[u].end; ++t) add_rows(work, query_tasks[t], static_cast<std::int64_t>(u), schedule);
    }

    void make_units(const Backward& b, const Work& work, bool by_share) {
      units.reserve(query_tasks.size());
      if (b.grads_.empty()) {
        for (std::size_t t = 0; t < query_tasks.size(); ++t) units.push_back({t, t + 1, 0, query_tasks[t].cost});
      } else {
        const auto partition = [&](std::size_t t) {
          const TileGroup& group = work.groups[static_cast<std::size_t>(query_tasks[t].group)];
          return b.grads_.partition(work.sequences[static_cast<std::size_t>(group.sequence)].symbol, group.kv_head, query_tasks[t].share);
        };
        std::pmr::vector<std::pair<std::int64_t, Task>> order(work.memory());
        order.reserve(query_tasks.size());
        for (std::size_t t = 0; t < query_tasks.size(); ++t) order.emplace_back(partition(t), query_tasks[t]);
        std::sort(order.begin(), order.end(), [](const auto& x, const auto& y) {
          return std::tie(x.first, x.second.group, x.second.share) < std::tie(y.first, y.second.group, y.second.share);
        });
        for (std::size_t t = 0; t < order.size(); ++t) {
          query_tasks[t] = order[t].second;
          if (units.empty() || units.back().partition != order[t].first) units.push_back({t, t, order[t].first, 0});
          units.back().end = t + 1;
          units.back().cost += order[t].second.cost;
        }
      }
      if (by_share && b.strategy_ != BackwardStrategy::two_scan)
        std::sort(units.begin(), units.end(),
                  [](const Unit& x, const Unit& y) { return std::tie(y.cost, x.begin) < std::tie(x.cost, y.begin); });
    }

    void make_key_tasks(const Backward& b, const Work& work) {
      const auto blocks_of = [&](const TileGroup& group) {
        const Sequence& sequence = work.sequences[static_cast<std::size_t>(group.sequence)];
        return static_cast<std::int32_t>((sequence.seqlen_kv + b.s_.ops.block_kv - 1) / b.s_.ops.block_kv);
      };
      std::int32_t count = 0, most = 0;
      for (const TileGroup& group : work.groups) {
        count += (blocks_of(group) + blocks_per_key_task - 1) / blocks_per_key_task;
        most = std::max(most, blocks_of(group));
      }
      key_tasks.reserve(static_cast<std::size_t>(count));
      std::pmr::vector<std::int64_t> starts(work.memory());  // how many tiles begin minus end at a block
      starts.reserve(static_cast<std::size_t>(most) + 1);
      for (std::size_t g = 0; g < work.groups.size(); ++g) {
        const TileGroup& group = work.groups[g];
        const std::int32_t blocks = blocks_of(group);
        starts.assign(static_cast<std::size_t>(blocks) + 1, 0);
        for (std::int64_t t = group.tile_begin; t < group.tile_end; ++t) {
          const LaneTile& tile = work.tiles[static_cast<std::size_t>(t)];
          for (std::int64_t r = tile.run_begin; r < tile.run_end; ++r) {
            ++starts[static_cast<std::size_t>(work.runs[static_cast<std::size_t>(r)].begin)];
            --starts[static_cast<std::size_t>(work.runs[static_cast<std::size_t>(r)].end)];
          }
        }
        std::int64_t tiles = 0;
        for (std::int32_t begin = 0; begin < blocks; begin += blocks_per_key_task) {
          KeyTask task{static_cast<std::int64_t>(g), begin, std::min(blocks, begin + blocks_per_key_task), 0};
          for (std::int32_t block = begin; block < task.block_end; ++block) task.cost += tiles += starts[static_cast<std::size_t>(block)];
          key_tasks.push_back(task);
        }
      }
      if (b.strategy_ == BackwardStrategy::split)
        std::sort(key_tasks.begin(), key_tasks.end(), [](const KeyTask& x, const KeyTask& y) {
          return std::tie(y.cost, x.group, x.block_begin) < std::tie(x.cost, y.group, y.block_begin);
        });
    }

    std::pmr::vector<Task> query_tasks;
    std::pmr::vector<Unit> units;
    std::pmr::vector<KeyTask> key_tasks;
  };

  struct Call {
    Call() = default;
    Call(const problem::Buffers& b, const Setup<Real>& s)
        : q(b.q), k(b.k), v(b.v), dout(b.dout), dq(b.dq), dk(b.dk), dv(b.dv), dropout(s.dropout(b.rng)) {}
    HeadRows q, k, v, dout, dq, dk, dv;
    TileDropout dropout{};
    const Work* work = nullptr;
    void* param_memory = nullptr;
    void* grad_memory = nullptr;
    void* list_memory = nullptr;  ///< for work that depends on the data
    TapeData data;
    RowScalars<Real> rows;
    Real *dk_acc = nullptr, *dv_acc = nullptr;  ///< of all shares, when there are several
  };

  /// A tile of lanes with everything that its products read.
  struct LaneState {
    const LaneTile* tile;
    BlockCursor cursor;
    std::int32_t block;
    bool any_empty;  ///< some lane has nothing to attend
    bool any_nan;    ///< the lse of some lane is NaN
    bool any_far;    ///< `far` of some lane is not 0
    LaneSymbols* symbols;
    LaneView lanes;
    int first;  ///< lane of the tile that is lane 0 here
    void *q_panel, *dout_panel, *q_rows, *dout_rows;
    NonfiniteRows *nonfinite_q, *nonfinite_dout;  ///< of the tile's rows, where packed for dk and dv
    Real *lse, *delta, *far, *dq;

    /// dim: of q; dim_v: of dout.
    LaneState slice(int begin, int end, int dim, int dim_v) const {
      LaneState part = *this;
      part.lanes = lanes.slice(begin, end);
      part.first += begin;
      part.q_panel = static_cast<Real*>(q_panel) + begin, part.dout_panel = static_cast<Real*>(dout_panel) + begin;
      part.q_rows = static_cast<Real*>(q_rows) + begin * padded_dim(dim);
      part.dout_rows = static_cast<Real*>(dout_rows) + begin * padded_dim(dim_v);
      part.lse += begin, part.delta += begin, part.far += begin, part.dq += begin;
      return part;
    }
  };

  struct Slot {
    LaneState* states;
    Real *p, *ds, *dots, *dropped;
    void *p_spread, *ds_spread, *ds_mix;  ///< weights
    void* tape_scratch;
    std::int32_t *first, *last;
    Operand *k, *v;  ///< one for each block of a key task
    void **k_scratch, **v_scratch;
    void *k_copy, *k_copy_scratch, *lane_copy;
    NonfiniteRows* nonfinite_k;  ///< of this block, where it is mixed into dq
    KeptPairs* kept;
    Real *dk, *dv;  ///< accumulators of this task

    Slot slice(int begin) const {
      Slot part = *this;
      part.p += begin, part.ds += begin, part.dots += begin, part.dropped += begin, part.first += begin, part.last += begin;
      part.p_spread = part.dropped, part.ds_spread = part.ds_mix = part.ds;
      return part;
    }
  };

  // ------------------------------------------------------------------------------------------------------------------ running

  void run_lists(const problem::Buffers& buffers, const Call& call, const Lists& lists, Slot* slots) const {
    const Work& work = *call.work;
    grads_.clear(call.grad_memory, buffers.dparams, s_.executor);
    const auto each = [&](std::size_t tasks, auto&& fn) {
      base::parallel_for(s_.executor, static_cast<std::int64_t>(tasks), [&](std::int64_t i, int slot) {
        const TaskMode mode(s_.ops.enter, s_.ops.leave);
        fn(static_cast<std::size_t>(i), slots[slot]);
      });
    };
    constexpr std::size_t tiles_per_delta_task = 16;
    each((work.tiles.size() + tiles_per_delta_task - 1) / tiles_per_delta_task, [&](std::size_t i, Slot& slot) {
      fill_rows(buffers, call, i * tiles_per_delta_task, std::min(work.tiles.size(), (i + 1) * tiles_per_delta_task), slot);
    });
    call.rows.write_dsink(s_, buffers);

    const std::size_t units = lists.units.size(), key_tasks = lists.key_tasks.size();
    const auto query_unit = [&](std::size_t u, Slot& slot) {
      const TapeGrads grads = grads_.empty() ? TapeGrads{} : grads_.grads(call.grad_memory, buffers.dparams, lists.units[u].partition);
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
    if (strategy_ == BackwardStrategy::fused && shares_ > 1 && (wants_dk_ || wants_dv_)) {
      std::size_t blocks = 0;
      for (const TileGroup& group : work.groups) blocks = std::max(blocks, reduce_chunks(work, group));
      each(work.groups.size() * blocks, [&](std::size_t i, Slot&) { reduce_shares(call, work.groups[i / blocks], i % blocks); });
    }
    // A sequence without queries has no tiles, but its dk and dv are zeros all the same.
    for (const Sequence& sequence : work.sequences)
      if (sequence.seqlen_q == 0) write_zeros(call, sequence);
    grads_.finish(call.grad_memory, buffers.dparams, s_.executor);
  }

  void fill_rows(const problem::Buffers& buffers, const Call& call, std::size_t tile_begin, std::size_t tile_end, Slot& slot) const {
    const Work& work = *call.work;
    auto group = std::upper_bound(work.groups.begin(), work.groups.end(), static_cast<std::int64_t>(tile_begin),
                                  [](std::int64_t t, const TileGroup& g) { return t < g.tile_end; });
    for (std::size_t t = tile_begin; t < tile_end; ++t) {
      while (static_cast<std::int64_t>(t) >= group->tile_end) ++group;
      const Sequence& sequence = work.sequences[static_cast<std::size_t>(group->sequence)];
      if (call.rows.fill(buffers, sequence, work.tiles[t], s_.dim_v, s_.ops.row_dots))
        measure(buffers, call, sequence, *group, work.tiles[t], slot);
    }
  }

  /// A tile with far rows: their scores once more, for maxima and sums.
  void measure(const problem::Buffers& buffers, const Call& call, const Sequence& sequence, const TileGroup& group, const LaneTile& tile,
               Slot& slot) const {
    LaneState& state = slot.states[0];
    start(call, sequence, tile, false, slot, state);
    Real *max = state.dq, *sum = max + s_.ops.tile_lanes, *factor = sum + s_.ops.tile_lanes, *lane_max = factor + s_.ops.tile_lanes;
    start_sums(s_, tile, s_.problem.sink >= 0 ? &buffers.params[static_cast<std::size_t>(s_.problem.sink)] : nullptr, max, sum);
    for (std::int32_t block = 0; (block = state.cursor.next(block)) != BlockCursor::none; ++block) {
      const KeyRange all{0, s_.block_keys(sequence, block)};
      const std::int64_t token = sequence.kv_begin + std::int64_t{block} * s_.ops.block_kv;
      const Operand k = s_.ops.prepare(call.k.keys(sequence.batch, token, group.kv_head), all.end, s_.dim, true, false, slot.k_scratch[0]);
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

  // ---------------------------------------------------------------------------------------------------------------- planning

  void choose_strategy() {
    const problem::Problem& p = s_.problem;
    const std::int64_t groups = std::max<std::int64_t>(1, p.batch * p.heads_kv);
    const std::int64_t tiles = s_.planner.max_tiles_per_group();
    const std::int64_t useful = std::clamp<std::int64_t>(tiles / 4, 1, (wanted_tasks + groups - 1) / groups);
    const auto affordable = static_cast<std::int64_t>(share_limit / std::max<std::size_t>(1, acc_bytes(acc_rows_of_all())));
    shares_ = std::clamp<std::int64_t>(affordable, 1, useful);
    strategy_ = p.attention.backward;
    because_ = "asked for";
    if (strategy_ != BackwardStrategy::automatic) {
      if (strategy_ != BackwardStrategy::fused) shares_ = useful;  // nothing but parameter gradients depends on them
      return;
    }
    // Seven products instead of five cost 1.4 times the work: worth it only when accumulators for enough tasks would take too much memory.
    const bool starved = shares_ < useful && groups * shares_ < wanted_tasks / 2;
    strategy_ = starved ? BackwardStrategy::split : BackwardStrategy::fused;
    because_ = starved ? base::join("accumulators for ", useful, " shares would exceed ", share_limit >> 20, " MiB")
                       : base::join("five products instead of seven; ", groups * shares_, " tasks");
    if (starved) shares_ = useful;
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
  /// Of work and lists that are made in each run.
  std::size_t list_bytes() const {
    if (s_.work) return 0;
    const auto tasks = static_cast<std::size_t>(std::max(s_.planner.max_tiles(), s_.planner.max_groups() * shares_));
    const auto key_tasks = static_cast<std::size_t>(s_.planner.max_blocks() + s_.planner.max_groups());
    return s_.planner.run_bytes() + tasks * (sizeof(Task) + sizeof(Unit) + sizeof(std::pair<std::int64_t, Task>)) +
           key_tasks * (sizeof(KeyTask) + sizeof(std::int64_t)) + 256;
  }
  std::int64_t max_seqlen_kv() const { return s_.problem.seqlen_kv > 0 ? s_.problem.seqlen_kv : s_.problem.total_kv; }

  Slot* carve(Carver& carver, Call* call) const {
    const auto lanes = static_cast<std::size_t>(s_.ops.tile_lanes), cells = lanes * static_cast<std::size_t>(s_.ops.block_kv);
    Call measured;
    Call& c = call ? *call : measured;
    c.param_memory = carver.bytes(s_.tape.data_bytes());
    c.grad_memory = carver.bytes(grads_.workspace_bytes());
    c.list_memory = carver.bytes(list_bytes());
    c.rows.carve(carver, s_.problem);
    const bool shared = fused() && shares_ > 1;
    if (shared) {
      const auto rows = static_cast<std::size_t>(shares_ * acc_rows_of_all());
      c.dk_acc = carver.take<Real>(rows * static_cast<std::size_t>(dk_ld()));
      c.dv_acc = carver.take<Real>(rows * static_cast<std::size_t>(dv_ld()));
    }
    std::size_t own_rows = 0;
    if (fused() && !shared) own_rows = static_cast<std::size_t>(max_seqlen_kv() + s_.ops.block_kv);
    if (!fused()) own_rows = static_cast<std::size_t>(blocks_per_key_task) * static_cast<std::size_t>(s_.ops.block_kv);
    const int blocks = fused() ? 1 : blocks_per_key_task;

    Slot* slots = carver.take<Slot>(static_cast<std::size_t>(s_.slots()));
    for (int i = 0; i < s_.slots(); ++i) {
      Slot slot;
      slot.states = carver.take<LaneState>(static_cast<std::size_t>(tiles_per_step_));
      for (int t = 0; t < tiles_per_step_; ++t) {
        LaneState state{};
        state.symbols = carver.take<LaneSymbols>(1);
        state.q_panel = carver.bytes(s_.ops.panel_bytes(s_.dim));
        state.dout_panel = carver.bytes(s_.ops.panel_bytes(s_.dim_v));
        state.q_rows = carver.bytes(s_.ops.rows_bytes(s_.dim));
        state.dout_rows = carver.bytes(s_.ops.rows_bytes(s_.dim_v));
        state.lse = carver.take<Real>(lanes);
        state.delta = carver.take<Real>(lanes);
        state.far = carver.take<Real>(lanes);
        state.dq = carver.take<Real>(lanes * static_cast<std::size_t>(padded_dim(s_.dim)));
        state.nonfinite_q = carver.take<NonfiniteRows>(1);
        state.nonfinite_dout = carver.take<NonfiniteRows>(1);
        if (call) slot.states[t] = state;
      }
      slot.p = carver.take<Real>(cells);
      slot.ds = carver.take<Real>(cells);
      slot.dots = s_.tape.backward_needs_dots() ? carver.take<Real>(cells) : slot.p;
      slot.dropped = s_.has_dropout() ? carver.take<Real>(cells) : slot.p;
      slot.p_spread = s_.ops.weights_in_tile ? slot.dropped : carver.bytes(cells * 2);
      slot.ds_spread = s_.ops.weights_in_tile ? slot.ds : carver.bytes(cells * 2);
      slot.ds_mix = s_.ops.weights_in_tile ? slot.ds : carver.bytes(cells * 2);
      slot.tape_scratch = carver.bytes(s_.tape.scratch_bytes(s_.ops.block_kv, s_.ops.tile_lanes));
      slot.first = carver.take<std::int32_t>(lanes);
      slot.last = carver.take<std::int32_t>(lanes);
      slot.k = carver.take<Operand>(static_cast<std::size_t>(blocks));
      slot.v = carver.take<Operand>(static_cast<std::size_t>(blocks));
      slot.k_scratch = carver.take<void*>(static_cast<std::size_t>(blocks));
      slot.v_scratch = carver.take<void*>(static_cast<std::size_t>(blocks));
      for (int b = 0; b < blocks; ++b) {
        void* k = carver.bytes(s_.ops.operand_bytes(s_.dim));
        void* v = carver.bytes(s_.ops.operand_bytes(s_.dim_v));
        if (call) slot.k_scratch[b] = k, slot.v_scratch[b] = v;
      }
      slot.k_copy = carver.bytes(s_.copy_bytes(s_.ops.block_kv, s_.dim));
      slot.k_copy_scratch = carver.bytes(s_.ops.operand_bytes(s_.dim));
      slot.lane_copy = carver.bytes(s_.copy_bytes(s_.ops.tile_lanes, std::max(s_.dim, s_.dim_v)));
      slot.nonfinite_k = carver.take<NonfiniteRows>(1);
      slot.kept = carver.take<KeptPairs>(1);
      slot.dk = carver.take<Real>(own_rows * static_cast<std::size_t>(dk_ld()));
      slot.dv = carver.take<Real>(own_rows * static_cast<std::size_t>(dv_ld()));
      if (call) slots[i] = slot;
    }
    return slots;
  }

  // ---------------------------------------------------------------------------------------------------------- the common core

  /// Packs what the products of a tile read. Lanes with nothing to attend count as rows of zeros: they may hold anything, NaN even.
  void start(const Call& call, const Sequence& sequence, const LaneTile& tile, bool for_keys, const Slot& slot, LaneState& state) const {
    state.tile = &tile;
    state.first = 0;
    state.cursor = BlockCursor(call.work->runs.data() + tile.run_begin, call.work->runs.data() + tile.run_end);
    state.symbols->fill(tile, sequence, s_.problem);
    state.lanes = {tile.lanes(), state.symbols->head, state.symbols->q_idx};
    state.any_empty = state.any_nan = state.any_far = false;
    const void* q[max_lanes] = {};
    const void* dout[max_lanes] = {};
    for_each_lane(tile, [&](int lane, std::int32_t head, std::int32_t query) {
      const std::int64_t row = call.rows.index(sequence, head, query);
      state.lse[lane] = call.rows.lse[row];
      state.delta[lane] = call.rows.delta[row];
      state.far[lane] = call.rows.far[row];
      state.any_nan |= std::isnan(state.lse[lane]);
      state.any_far |= state.far[lane] != 0;
      if (call.rows.empty(row)) {
        state.any_empty = true;
        return;
      }
      q[lane] = call.q.row(sequence.batch, sequence.q_begin + query, head);
      dout[lane] = call.dout.row(sequence.batch, sequence.q_begin + query, head);
    });
    for (int lane = tile.lanes(); lane < padded_lanes(tile); ++lane) state.lse[lane] = state.delta[lane] = state.far[lane] = 0;
    const LaneRows q_rows{q, padded_lanes(tile), call.q.stride, call.q.dtype};
    const LaneRows dout_rows{dout, padded_lanes(tile), call.dout.stride, call.dout.dtype};
    s_.ops.pack_panel(q_rows, s_.dim, s_.sign, state.q_panel);
    if (wants_ds_) s_.ops.pack_panel(dout_rows, s_.dim_v, Real(1), state.dout_panel);
    const bool drops = s_.drops_anywhere() || s_.tape.has_mask();
    const auto pack_rows = [&](LaneRows rows, int dim, NonfiniteRows& nonfinite, void* packed) {
      if (drops) nonfinite.take(s_.ops, dim, slot.lane_copy, rows);
      s_.ops.pack_rows(rows, dim, packed);
    };
    state.nonfinite_q->clear();
    state.nonfinite_dout->clear();
    if (for_keys && wants_dk_) pack_rows(q_rows, s_.dim, *state.nonfinite_q, state.q_rows);
    if (for_keys && wants_dv_) pack_rows(dout_rows, s_.dim_v, *state.nonfinite_dout, state.dout_rows);
  }

  /// What a tile and block add to dk, dv (null: nothing) and dq.
  void visit(const Call& call, const Sequence& sequence, const LaneState& state, int keys, const Operand& k, const Operand& v,
             const TapeGrads* grads, Real* dk, Real* dv, bool with_dq, Slot& slot) const {
    const int ld = s_.ops.tile_lanes;
    const auto visit_lanes = [&](const LaneState& lanes, Slot& tiles) {
      const KeyRange range = differentiate(call, sequence, lanes, keys, k, v, grads, tiles);
      if (range.begin == range.end) return;
      const int count = lanes.lanes.padded(), valid = lanes.lanes.count;
      if (dv) s_.ops.spread(tiles.p_spread, lanes.dout_rows, range, count, s_.dim_v, dv);
      if (dk) s_.ops.spread(tiles.ds_spread, lanes.q_rows, range, count, s_.dim, dk);
      if (with_dq) s_.ops.mix(k, tiles.ds_mix, range, count, s_.dim, lanes.dq);
      if (dv && lanes.nonfinite_dout->any())
        lanes.nonfinite_dout->spread(lanes.first, range, *tiles.kept, tiles.dropped, ld, valid, s_.dim_v, s_.has_dropout(), dv);
      if (dk && lanes.nonfinite_q->any())
        lanes.nonfinite_q->spread(lanes.first, range, *tiles.kept, tiles.ds, ld, valid, s_.dim, false, dk);
      if (with_dq && tiles.nonfinite_k->any()) tiles.nonfinite_k->mix(range, *tiles.kept, tiles.ds, ld, valid, s_.dim, false, lanes.dq);
    };
    const int count = state.lanes.count;
    int lower = count;
    if (!state.cursor.full() && s_.tape.mask_is_ranges()) {
      const KeyRange all{0, keys};
      s_.tape.lane_ranges(s_.frame(sequence, state.lanes, state.block, all), call.data, slot.first, slot.last, slot.tape_scratch);
      if (s_.ops.weights_in_tile) lower = first_slice({slot.first, slot.last}, count, s_.ops.tile_lanes / 2, all);
    }
    if (lower == count) return visit_lanes(state, slot);
    visit_lanes(state.slice(0, lower, s_.dim, s_.dim_v), slot);
    Slot rest = slot.slice(lower);
    visit_lanes(state.slice(lower, count, s_.dim, s_.dim_v), rest);
  }

  /// P and dS of lanes and block, in the slot's tiles and weights. The result is the range of keys that take part.
  KeyRange differentiate(const Call& call, const Sequence& sequence, const LaneState& state, int keys, const Operand& k, const Operand& v,
                         const TapeGrads* grads, Slot& slot) const {
    const int ld = s_.ops.tile_lanes, valid = state.lanes.count, lanes = state.lanes.padded();
    const bool partial = !state.cursor.full(), by_ranges = partial && s_.tape.mask_is_ranges();
    KeyRange range{0, keys};
    LaneRanges ranges;
    if (by_ranges || lanes > valid) {
      if (!by_ranges) {
        std::fill_n(slot.first, valid, 0);
        std::fill_n(slot.last, valid, keys);
      }
      std::fill(slot.first + valid, slot.first + lanes, 0);  // padding keeps nothing
      std::fill(slot.last + valid, slot.last + lanes, 0);
      ranges = {slot.first, slot.last};
      range = trim(ranges, valid, s_.ops.key_multiple, range);
      if (range.begin == range.end) return range;
    }
    TileFrame frame = s_.frame(sequence, state.lanes, state.block, range);
    s_.ops.dot(k, state.q_panel, range, lanes, s_.dim, slot.dots);
    if (s_.tape.has_score() || (partial && !by_ranges)) {
      const std::ptrdiff_t at = std::ptrdiff_t{range.begin} * ld;
      s_.tape.apply(frame, call.data, slot.dots + at, slot.p + at, partial, static_cast<Real*>(nullptr), slot.tape_scratch);
      if (state.any_empty) remove_empty_lanes(state, range, slot.p);
      if (partial && !by_ranges) {
        range = trim(slot.p, ld, valid, s_.ops.key_multiple, range);
        if (range.begin == range.end) return range;
        frame = s_.frame(sequence, state.lanes, state.block, range);
      }
    } else if (slot.dots != slot.p) {
      copy_tile(slot.dots, range, lanes, slot.p);
    }
    const std::ptrdiff_t at = std::ptrdiff_t{range.begin} * ld;
    const bool own_weights = !s_.ops.weights_in_tile, dropout = s_.has_dropout();
    const bool nonfinite = state.any_nan || slot.nonfinite_k->any() || state.nonfinite_q->any() || state.nonfinite_dout->any();
    if (nonfinite) slot.kept->note(slot.p, ld, range, valid, ranges);
    const Weights p_weights{.mix = nullptr, .spread = own_weights ? slot.p_spread : nullptr};
    s_.ops.probabilities(slot.p, range, lanes, s_.scale, ranges, state.any_far ? state.far : nullptr, state.lse,
                         dropout || nonfinite ? Weights{} : p_weights);
    if (nonfinite) slot.kept->clear_dropped(slot.p, ld, range, valid);
    if (wants_ds_) s_.ops.dot(v, state.dout_panel, range, lanes, s_.dim_v, slot.ds);
    if (dropout) {  // dropped is what dV takes; dS takes P itself, and dP with the same pairs dropped
      copy_tile(slot.p, range, lanes, slot.dropped);
      Real* second = wants_ds_ ? slot.ds + at : nullptr;
      apply_dropout<Real>(s_.target, frame, call.dropout, slot.dropped + at, second);
    }
    if (own_weights && (dropout || nonfinite)) s_.ops.round_weights(slot.dropped, range, lanes, p_weights);
    if (wants_ds_) {
      const Weights ds_weights{.mix = own_weights ? slot.ds_mix : nullptr, .spread = own_weights ? slot.ds_spread : nullptr};
      const bool by_tape = s_.tape.has_backward(), round_later = by_tape || nonfinite;
      s_.ops.score_gradient(slot.p, slot.ds, range, lanes, state.delta, round_later ? Weights{} : ds_weights);
      if (by_tape)
        s_.tape.differentiate(frame, call.data, s_.tape.backward_needs_dots() ? slot.dots + at : nullptr, slot.ds + at, grads,
                              slot.tape_scratch);
      if (round_later && own_weights) s_.ops.round_weights(slot.ds, range, lanes, ds_weights);
    }
    return range;
  }

  /// The dot products of a lane with nothing to attend were taken with zeros, of which a score may make anything.
  void remove_empty_lanes(const LaneState& state, KeyRange range, Real* scores) const {
    for (int lane = 0; lane < state.lanes.count; ++lane) {
      if (state.lse[lane] != std::numeric_limits<Real>::infinity()) continue;
      for (int key = range.begin; key < range.end; ++key) scores[key * s_.ops.tile_lanes + lane] = -std::numeric_limits<Real>::infinity();
    }
  }

  void copy_tile(const Real* from, KeyRange range, int lanes, Real* to) const {
    for (int key = range.begin; key < range.end; ++key) std::copy_n(from + key * s_.ops.tile_lanes, lanes, to + key * s_.ops.tile_lanes);
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
    const TileGroup& group = call.work->groups[static_cast<std::size_t>(task.group)];
    const Sequence& sequence = call.work->sequences[static_cast<std::size_t>(group.sequence)];
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
      LaneState& state = slot.states[t];
      start(call, sequence, call.work->tiles[static_cast<std::size_t>(tile_begin + t)], fused(), slot, state);
      if (wants_dq_) std::fill_n(state.dq, std::int64_t{s_.dim} * s_.ops.tile_lanes, Real(0));
    }
    for (std::int32_t from = 0;;) {
      const std::int32_t block = next_block(slot.states, count, from);
      if (block == BlockCursor::none) break;
      const int keys = s_.block_keys(sequence, block);
      const std::int64_t key = std::int64_t{block} * s_.ops.block_kv;
      bool drops = s_.drops_anywhere();
      for (int t = 0; t < count; ++t) drops |= slot.states[t].block == block && !slot.states[t].cursor.full();
      prepare(call, sequence, kv_head, block, wants_dq_, drops, 0, slot);
      const std::int64_t next_token = sequence.kv_begin + key + s_.ops.block_kv;
      const int next_keys = std::max(0, s_.block_keys(sequence, block + 1));
      const NextRows next_k(call.k.keys(sequence.batch, next_token, kv_head), next_keys, s_.dim);
      const NextRows next_v(call.v.keys(sequence.batch, next_token, kv_head), next_keys, s_.dim_v);
      for (int t = 0; t < count; ++t) {
        const LaneState& state = slot.states[t];
        next_k.fetch(t, count);
        next_v.fetch(t, count);
        if (state.block != block) continue;
        visit(call, sequence, state, keys, slot.k[0], slot.v[0], grads, fused() && wants_dk_ ? dk + key * dk_ld() : nullptr,
              fused() && wants_dv_ ? dv + key * dv_ld() : nullptr, wants_dq_, slot);
      }
      from = block + 1;
    }
    if (!wants_dq_) return;
    for (int t = 0; t < count; ++t) write_dq(call, sequence, slot.states[t]);
  }

  /// drops: some pair of the block may be dropped.
  void prepare(const Call& call, const Sequence& sequence, std::int32_t kv_head, std::int32_t block, bool mix, bool drops, int at,
               Slot& slot) const {
    const int keys = s_.block_keys(sequence, block);
    const std::int64_t token = sequence.kv_begin + std::int64_t{block} * s_.ops.block_kv;
    KeyRows k_rows = call.k.keys(sequence.batch, token, kv_head);
    slot.k[at] = s_.ops.prepare(k_rows, keys, s_.dim, true, mix, slot.k_scratch[at]);
    slot.nonfinite_k->clear();
    if (mix && drops) slot.nonfinite_k->take(s_.ops, keys, s_.dim, slot.k_copy, k_rows);
    if (slot.nonfinite_k->any()) {
      const Operand finite = s_.ops.prepare(k_rows, keys, s_.dim, false, true, slot.k_copy_scratch);
      slot.k[at].mix = finite.mix, slot.k[at].mix_stride = finite.mix_stride;
    }
    slot.v[at] = s_.ops.prepare(call.v.keys(sequence.batch, token, kv_head), keys, s_.dim_v, true, false, slot.v_scratch[at]);
  }

  void write_dq(const Call& call, const Sequence& sequence, const LaneState& state) const {
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
    const std::int64_t keys = work.sequences[static_cast<std::size_t>(group.sequence)].seqlen_kv;
    return static_cast<std::size_t>((keys + keys_per_reduction - 1) / keys_per_reduction);
  }

  /// Adds the shares of some keys into the first, in order, and writes them.
  void reduce_shares(const Call& call, const TileGroup& group, std::size_t chunk) const {
    const Sequence& sequence = call.work->sequences[static_cast<std::size_t>(group.sequence)];
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
    const Sequence& sequence = call.work->sequences[static_cast<std::size_t>(group.sequence)];
    const std::int64_t first_key = std::int64_t{task.block_begin} * s_.ops.block_kv;
    const auto keys = std::min<std::int64_t>(sequence.seqlen_kv, std::int64_t{task.block_end} * s_.ops.block_kv) - first_key;
    std::fill_n(slot.dk, keys * dk_ld(), Real(0));
    std::fill_n(slot.dv, keys * dv_ld(), Real(0));
    for (std::int32_t block = task.block_begin; block < task.block_end; ++block)
      prepare(call, sequence, group.kv_head, block, false, false, block - task.block_begin, slot);
    LaneState& state = slot.states[0];
    for (std::int64_t t = group.tile_begin; t < group.tile_end; ++t) {
      const LaneTile& tile = call.work->tiles[static_cast<std::size_t>(t)];
      const mask::Run* runs = call.work->runs.data();
      if (BlockCursor(runs + tile.run_begin, runs + tile.run_end).next(task.block_begin) >= task.block_end) continue;
      start(call, sequence, tile, true, slot, state);
      for (state.block = state.cursor.next(task.block_begin); state.block < task.block_end;
           state.block = state.cursor.next(state.block + 1)) {
        const int at = state.block - task.block_begin;
        const std::int64_t row = std::int64_t{at} * s_.ops.block_kv;
        visit(call, sequence, state, s_.block_keys(sequence, state.block), slot.k[at], slot.v[at], nullptr,
              wants_dk_ ? slot.dk + row * dk_ld() : nullptr, wants_dv_ ? slot.dv + row * dv_ld() : nullptr, false, slot);
      }
    }
    write_keys(call, sequence, group.kv_head, first_key, static_cast<int>(keys), slot.dk, slot.dv);
  }

  Setup<Real> s_;
  bool wants_dq_ = false, wants_dk_ = false, wants_dv_ = false, wants_ds_ = false;
  BackwardStrategy strategy_ = BackwardStrategy::fused;
  std::string because_;
  std::int64_t shares_ = 1;
  ParamGradPlan grads_;
  int tiles_per_step_ = 1;
  std::optional<Lists> lists_;
  std::size_t workspace_bytes_ = 0;
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
