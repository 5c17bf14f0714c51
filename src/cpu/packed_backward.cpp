// The backward pass over packed tiles (kernels/amx_backward.h, kernels/amx_scored_backward.h). A task takes the tiles of one kv head, or a
// fixed share of them, a step at a time: as many as fit in L2 with their accumulators. Each block of keys that a step needs is packed once
// for all its tiles. dq stays with its tile; dk and dv accumulate over the task, then over tasks in order. The shape alone decides the
// order of additions: results are bitwise the same for any number of threads.
#include "cpu/packed_backward.h"

#include <algorithm>
#include <atomic>

#include "cpu/backward_pass.h"
#include "cpu/backward_tasks.h"
#include "cpu/block_sums.h"
#include "cpu/packed_queries.h"
#include "cpu/param_grad_plan.h"

namespace foveal::cpu {
namespace {

constexpr int max_tiles_per_step = 16;

struct GradientMemory : CallMemory {
  RowScalars<float> rows;
  std::int64_t* first_block = nullptr;  ///< of each group, among all blocks
  void* grads = nullptr;                ///< of parameters
  BlockSums::Memory shared;             ///< of all shares, where there are several
};

using GradientCall = BackwardCallOf<float, GradientMemory>;

struct GradientWorker : WorkerOf<BackwardTile> {
  QueryTile* met;  ///< tiles that attend to the block
  void *k, *v, *k_columns, *scratch;
  std::int32_t* met_tiles;  ///< their numbers among the worker's tiles
  BlockSums::Memory own;    ///< of this task
};

const PackedBackwardOps& ops_of(const BlockOps<float>& ops, PackedForm form) {
  return form == PackedForm::programs ? ops.packed->scored_backward : ops.packed->backward;
}

class PackedBackward final : public BackwardPass<float, GradientCall, GradientWorker, BackwardTasks> {
  using Call = GradientCall;
  using Worker = GradientWorker;

 public:
  PackedBackward(std::unique_ptr<const Setup<float>> setup, Fallback fallback)
      : BackwardPass(std::move(setup), std::move(fallback)),
        ops_(ops_of(s_.ops, s_.packed_form())),
        queries_(s_, ops_),
        sums_(s_, ops_),
        shares_(Shares(s_.problem, s_.planner, 16, static_cast<std::size_t>(s_.planner.max_blocks()) * sums_.bytes_of_block()).count),
        grads_(s_.problem, shares_),
        tiles_per_step_(static_cast<int>(std::clamp<std::size_t>(l2_share_amx / queries_.bytes(), 1, max_tiles_per_step))) {
    lay_out();
    plan(tiles_per_step_, BackwardTasks::bytes(s_.planner, shares_));
  }

 private:
  // ---------------------------------------------------------------------------------------------------------------- planning

  bool scored() const { return s_.packed_form() == PackedForm::programs; }
  std::string path() const override { return scored() ? "backward.scored" : "backward.tiles"; }
  double products() const override { return 2.5; }
  void describe_strategy(Explanation& explanation) const override {
    explanation.strategy = to_string(BackwardStrategy::fused);
    explanation.reduction = grads_.reduction();
    explanation.details.emplace_back("shares of a kv head", std::to_string(shares_));
    explanation.details.emplace_back("tiles in a step", std::to_string(tiles_per_step_));
    grads_.describe(explanation, s_.problem, s_.tape);
  }
  BackwardTasks make_lists(const Work& work) const override {
    return {{.strategy = BackwardStrategy::fused,
             .shares = shares_,
             .wants_dq = true,
             .wants_keys = true,
             .tiles_per_step = tiles_per_step_,
             .block_kv = ops_.keys,
             .grads = &grads_},
            work};
  }

  std::size_t block_bytes_of(int dim) const { return ops_.packed_bytes(ops_.keys, dim); }

  void lay_out() {
    memory_.part(&GradientMemory::rows, RowScalars<float>::layout(s_.problem));
    memory_.array(&GradientMemory::first_block, static_cast<std::size_t>(s_.planner.max_groups()));
    memory_.bytes(&GradientMemory::grads, grads_.workspace_bytes());
    if (shares_ > 1) memory_.part(&GradientMemory::shared, sums_.layout(shares_ * s_.planner.max_blocks()));

    queries_.lay_out(tile_);

    worker_.array(&Worker::met, static_cast<std::size_t>(tiles_per_step_));
    worker_.array(&Worker::met_tiles, static_cast<std::size_t>(tiles_per_step_));
    worker_.bytes(&Worker::k, block_bytes_of(s_.dim));
    worker_.bytes(&Worker::v, block_bytes_of(s_.dim_v));
    worker_.bytes(&Worker::k_columns, block_bytes_of(s_.dim));
    worker_.bytes(&Worker::scratch, ops_.scratch_bytes);
    const std::int64_t keys = s_.problem.seqlen_kv > 0 ? s_.problem.seqlen_kv : s_.problem.total_kv;
    if (shares_ == 1) worker_.part(&Worker::own, sums_.layout(base::divide_up(keys, std::int64_t{ops_.keys})));
  }

  // ------------------------------------------------------------------------------------------------------------------ running

  /// False where a tensor holds infinity or NaN.
  bool run_lists(const Call& call, const BackwardTasks& lists, Worker* workers) const override {
    const Work& work = *call.work;
    const std::int64_t longest = work.number_blocks(ops_.keys, call.first_block);
    grads_.clear(call.grads, call.buffers.dparams, s_.executor);
    std::atomic<bool> finite = true;
    each(lists.units.size(), workers, [&](std::size_t u, Worker& worker) {
      const QueryUnit& unit = lists.units[u];
      const TapeGrads grads = grads_.empty() ? TapeGrads{} : grads_.grads(call.grads, call.buffers.dparams, unit.partition);
      for (std::size_t t = unit.begin; t < unit.end && finite; ++t)
        if (!run_task(call, lists.query_tasks[t], grads_.empty() ? nullptr : &grads, worker)) finite = false;
    });
    if (!finite) return false;
    grads_.finish(call.grads, call.buffers.dparams, s_.executor);
    call.rows.write_dsink(s_, call.buffers);
    constexpr std::int64_t at_once = 16;
    if (shares_ > 1)
      each_chunk(work, workers, longest, at_once, [&](std::size_t g, std::int64_t first) {
        const Sequence& sequence = work.sequence(work.groups[g]);
        for (std::int64_t block = first; block < std::min(sequence.blocks(ops_.keys), first + at_once); ++block)
          sums_.write(call, sequence, work.groups[g].kv_head, block, sums_.at(call.shared, call.first_block[g] + block), shares_);
      });
    for_each_unvisited(work, [&](const Sequence& sequence, std::int32_t head) {
      for (std::int64_t block = 0; block < sequence.blocks(ops_.keys); ++block) sums_.write(call, sequence, head, block, {}, 0);
    });
    return true;
  }

  bool run_task(const Call& call, const Task& task, const TapeGrads* grads, const Worker& worker) const {
    const TileGroup& group = call.work->group(task);
    const Sequence& sequence = call.work->sequence(group);
    const std::int64_t blocks = sequence.blocks(ops_.keys);
    const BlockSums::Memory sums =
        shares_ > 1 ? sums_.at(call.shared, task.share * s_.planner.max_blocks() + call.first_block[task.group]) : worker.own;
    std::fill_n(sums.used, blocks, false);
    for (std::int64_t t = task.tile_begin; t < task.tile_end; t += tiles_per_step_)
      if (!run_step(call, sequence, group.kv_head, t, std::min(task.tile_end, t + tiles_per_step_), sums, grads, worker)) return false;
    for (std::int64_t block = 0; shares_ == 1 && block < blocks; ++block)
      sums_.write(call, sequence, group.kv_head, block, sums_.at(sums, block), 1);
    return true;
  }

  bool run_step(const Call& call, const Sequence& sequence, std::int32_t kv_head, std::int64_t tile_begin, std::int64_t tile_end,
                const BlockSums::Memory& sums, const TapeGrads* grads, const Worker& worker) const {
    const int count = static_cast<int>(tile_end - tile_begin);
    bool finite = true;
    for (int t = 0; t < count; ++t) finite &= queries_.start(call, sequence, call.work->tile(tile_begin + t), worker.tiles[t]);
    BackwardVisit visit{};
    visit.k = worker.k, visit.v = worker.v, visit.k_columns = worker.k_columns, visit.scratch = worker.scratch, visit.tiles = worker.met;
    visit.multiplier = scored() ? s_.scale.natural : s_.sign * s_.scale.log2 * ops_.unit;
    visit.dim = s_.dim, visit.dim_v = s_.dim_v;
    const Met met{s_, call, sequence, worker, grads};
    const BackwardPrograms programs = met.programs();
    if (scored()) visit.programs = &programs;
    for (std::int32_t block = 0; (block = next_block(worker.tiles, count, block)) != BlockCursor::none; ++block) {
      visit.count = 0;
      for (int t = 0; t < count; ++t) {
        const BackwardTile& state = worker.tiles[t];
        if (state.block != block) continue;
        const bool all_keys = state.cursor.full() && s_.block_keys(sequence, block) == ops_.keys;
        const bool no_ranges = all_keys || !s_.masks_by_ranges();
        if (!no_ranges && !queries_.find_ranges(call, sequence, state, worker.tape_scratch)) continue;
        worker.met_tiles[visit.count] = t;
        worker.met[visit.count++] = state.view(no_ranges);
      }
      if (visit.count == 0) continue;
      const int keys = s_.block_keys(sequence, block);
      const auto rows = [&](const KeyBlocks& from) { return from.block(sequence, std::int64_t{block} * ops_.keys, keys, kv_head); };
      finite &= ops_.pack_keys(KeyPointers(rows(call.k), keys).in(ops_.keys), s_.dim, worker.k, worker.k_columns);
      finite &= ops_.pack_keys(KeyPointers(rows(call.v), keys).in(ops_.keys), s_.dim_v, worker.v, nullptr);
      if (!finite) return false;
      const BlockSums::Memory of_block = sums_.at(sums, block);
      visit.dk = of_block.dk, visit.dv = of_block.dv;
      visit.first = !*of_block.used;
      *of_block.used = true;
      ops_.visit(visit);
    }
    for (int t = 0; t < count; ++t) queries_.write_dq(call, sequence, worker.tiles[t]);
    return finite;
  }

  /// The programs over the tiles that a block meets.
  struct Met {
    const Setup<float>& s;
    const Call& call;
    const Sequence& sequence;
    const Worker& worker;
    const TapeGrads* grads;

    BackwardPrograms programs() const {
      return {.score = score,
              .differentiate = s.tape.has_backward() ? differentiate : nullptr,
              .context = this,
              .reads_dots = s.tape.backward_needs_dots()};
    }
    const BackwardTile& tile(int met) const { return worker.tiles[worker.met_tiles[met]]; }
    /// Of 32 keys, as far as they exist.
    TileFrame frame(const BackwardTile& tile, int key) const {
      const int end = std::clamp(s.block_keys(sequence, tile.block), key, key + KeySpan::granule);
      return s.frame(sequence, tile.lanes, tile.block, {key, end});
    }
    static int score(const void* context, int tile, int key, float* scores) {
      const Met& met = *static_cast<const Met*>(context);
      const BackwardTile& state = met.tile(tile);
      const TileFrame frame = met.frame(state, key);
      const bool partial = !state.cursor.full();
      if (frame.keys > 0 && (met.s.tape.has_score() || partial))
        met.s.tape.apply(frame, met.call.data, scores, scores, partial, static_cast<float*>(nullptr), met.worker.tape_scratch);
      return frame.keys;
    }
    static void differentiate(const void* context, int tile, int key, const float* dots, float* ds) {
      const Met& met = *static_cast<const Met*>(context);
      const TileFrame frame = met.frame(met.tile(tile), key);
      if (frame.keys > 0) met.s.tape.differentiate(frame, met.call.data, dots, ds, met.grads, met.worker.tape_scratch);
    }
  };

  const PackedBackwardOps& ops_;
  const PackedQueries queries_;
  const BlockSums sums_;
  const std::int64_t shares_;
  const ParamGradPlan grads_;
  const int tiles_per_step_;
};

}  // namespace

bool packed_backward_serves(const Setup<float>& setup) {
  const problem::Problem& problem = setup.problem;
  // An explicit strategy means the block operations.
  if (!setup.packs() || problem.attention.backward != BackwardStrategy::automatic) return false;
  if (!problem.dq.present || !problem.dk.present || !problem.dv.present) return false;
  // Masks by programs make scores -inf before the scale.
  if (setup.packed_form() == PackedForm::programs && !setup.tape.has_score() && problem.scale < 0) return false;
  return setup.mean_rows() >= ops_of(setup.ops, setup.packed_form()).lanes / 2;
}

std::unique_ptr<planning::Executable> make_packed_backward(const problem::Problem& problem, const Target& target,
                                                           const BlockOps<float>& ops, const PlanOptions& options, PackedForm form,
                                                           std::unique_ptr<planning::Executable> fallback) {
  const PackedBackwardOps& packed = ops_of(ops, form);
  return std::make_unique<PackedBackward>(
      std::make_unique<const Setup<float>>(problem, target, ops, options, Geometry{packed.lanes, packed.keys}),
      Fallback{std::move(fallback), "where a tensor holds infinity or NaN, or a row is far"});
}

}  // namespace foveal::cpu
