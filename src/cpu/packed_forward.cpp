// The forward pass over packed keys (kernels/amx_forward.h, kernels/amx_scored_forward.h). All threads pack keys and values once for each
// sequence and kv head; then a task runs tiles of queries over them, an L2-sized chunk at a time. Tasks are independent, and neither
// chunks nor tasks change the order of a tile's sums, so the result does not depend on the number of threads.
#include "cpu/packed_forward.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "cpu/packed_forms.h"

namespace foveal::cpu {
namespace {

template <class Form>
class PackedForward final : public ForwardPass<float, PackedCall, PackedWorker> {
  using Call = PackedCall;
  using Worker = PackedWorker;

 public:
  PackedForward(std::unique_ptr<const Setup<float>> setup, Fallback fallback)
      : ForwardPass(std::move(setup), std::move(fallback)), form_(s_), ops_(form_.layout()), block_(s_.geometry.block_kv), keys_(s_, ops_) {
    lay_out();
    const std::size_t tile_bytes = ops_.q_bytes(s_.dim) + ops_.acc_bytes(s_.dim_v) + form_.sums() * sizeof(float);
    plan_tasks(tiles_per_task(tile_bytes, 4 * s_.workers(), 32));
  }

 private:
  // ---------------------------------------------------------------------------------------------------------------- planning

  std::string path() const override { return Form::path; }
  std::size_t lanes() const { return static_cast<std::size_t>(ops_.rows); }

  void lay_out() {
    memory_.part(&PackedMemory::keys, keys_.layout());

    tile_.bytes(&PackedTile::q, ops_.q_bytes(s_.dim));
    tile_.array(&PackedTile::acc, ops_.acc_bytes(s_.dim_v) / sizeof(float));
    tile_.array(&PackedTile::max, lanes());
    tile_.array(&PackedTile::sums, form_.sums());

    form_.lay_out(worker_);
    worker_.bytes(&Worker::key_block, keys_.scratch_bytes());
  }

  // ------------------------------------------------------------------------------------------------------------------ running

  bool run_lists(const Call& call, const Tasks& tasks, Worker* workers) const override {
    const Work& work = *call.work;
    const std::int64_t longest = work.number_blocks(block_, call.keys.first_block);
    constexpr std::int64_t keys_worth_a_task = 1024;
    const std::int64_t parts = std::max<std::int64_t>(1, longest * block_ / keys_worth_a_task);
    std::atomic<bool> finite = true;
    base::parallel_for(s_.executor, static_cast<std::int64_t>(work.groups.size()) * parts, [&](std::int64_t i, int worker) {
      if (!keys_.pack(call.keys, call.k, call.v, work, static_cast<std::size_t>(i / parts), i % parts, parts, workers[worker].key_block))
        finite = false;
    });
    if (!finite && (s_.tape.has_mask() || s_.tape.has_score())) return false;
    std::atomic<bool> in_range = true;
    each(tasks.size(), workers, [&](std::size_t i, Worker& worker) {
      if (in_range && !run_task(call, tasks[i], worker)) in_range = false;
    });
    return in_range;
  }

  /// False where the form cannot serve what it met.
  bool run_task(const Call& call, const Task& task, Worker& worker) const {
    const Work& work = *call.work;
    const Sequence& sequence = work.sequence(work.group(task));
    const std::int64_t first_block = call.keys.first_block[task.group];
    const int count = static_cast<int>(task.tile_end - task.tile_begin);
    std::int32_t blocks = 0;
    for (int t = 0; t < count; ++t) {
      PackedTile& state = worker.tiles[t];
      start(call, sequence, work.tile(task.tile_begin + t), state);
      blocks = std::max(blocks, state.end());
    }
    const void *k = keys_.k(call.keys, first_block), *v = keys_.v(call.keys, first_block);
    const std::int32_t chunk = keys_.chunk();
    for (std::int32_t begin = 0; begin < blocks; begin += chunk)
      for (int t = 0; t < count; ++t) form_.visit(call, sequence, k, v, begin, std::min(begin + chunk, blocks), worker.tiles[t], worker);
    bool in_range = true;
    for (int t = 0; t < count; ++t) in_range &= finish(call, sequence, worker.tiles[t]);
    return in_range;
  }

  void start(const Call& call, const Sequence& sequence, const LaneTile& tile, PackedTile& state) const {
    state.start(*call.work, sequence, tile, s_.problem);
    ops_.pack_q(LanePointers(call.q, sequence, tile).in(tile.lanes()), s_.dim, s_.sign, state.q);
    std::fill_n(state.acc, ops_.acc_bytes(s_.dim_v) / sizeof(float), 0.0f);
    std::fill_n(state.max, lanes(), std::numeric_limits<float>::lowest());
    std::fill_n(state.sums, form_.sums(), 0.0f);
    if (call.sink) for_each_sink(*call.sink, tile, [&](int lane, double logit) { form_.start_with_sink(state, lane, logit); });
  }

  bool finish(const Call& call, const Sequence& sequence, const PackedTile& state) const {
    alignas(64) float sum[max_lanes], factor[max_lanes] = {};
    const LaneTile& tile = *state.tile;
    form_.add_sums(state, sum);
    finish_sums(call, sequence, tile, sum, factor, [&](int lane) { return form_.lse(state.max[lane], sum[lane]); });
    ops_.write(state.acc, s_.dim_v, factor, LanePointers(call.out, sequence, tile).out(tile.lanes()));
    return form_.in_range(state);
  }

  const Form form_;
  const PackedLayout& ops_;
  const int block_;
  const PackedKeys keys_;
};

}  // namespace

bool packed_forward_serves(const Setup<float>& setup) {
  if (!setup.packs()) return false;
  // Decode reads keys once: packing would not pay, and split-KV parallelises over keys.
  const problem::Problem& problem = setup.problem;
  const std::int64_t rows = setup.mean_rows(), tile_rows = setup.ops.packed->forward.layout.rows;
  const std::int64_t tiles = problem.batch * problem.heads_kv * (rows / tile_rows);
  const std::int64_t seqlen_kv = problem.ragged_kv() ? problem.total_kv / std::max<std::int64_t>(problem.batch, 1) : problem.seqlen_kv;
  return rows >= tile_rows && (tiles >= 8 || seqlen_kv <= 2048);
}

std::unique_ptr<planning::Executable> make_packed_forward(const problem::Problem& problem, const Target& target, const BlockOps<float>& ops,
                                                          const PlanOptions& options, PackedForm form,
                                                          std::unique_ptr<planning::Executable> fallback) {
  const auto made = [&](const Geometry& geometry) { return std::make_unique<const Setup<float>>(problem, target, ops, options, geometry); };
  if (form == PackedForm::programs) {
    const ScoredForwardOps& scored = ops.packed->scored_forward;
    return std::make_unique<PackedForward<ByPrograms>>(made({scored.layout.rows, scored.block}),
                                                       Fallback{std::move(fallback), "where v holds infinity or NaN"});
  }
  const int block = ops.packed->forward.block(static_cast<int>(problem.head_dim), static_cast<int>(problem.head_dim_v));
  return std::make_unique<PackedForward<ByRows>>(
      made({ops.packed->forward.layout.rows, block}),
      Fallback{std::move(fallback),
               base::join("where ", problem.has_mask() ? "v holds infinity or NaN, or " : "", "a maximum exceeds 2^24")});
}

}  // namespace foveal::cpu
