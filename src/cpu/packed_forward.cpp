// The forward pass over packed keys (kernels/amx_forward.h). All threads pack keys and values once for each sequence and kv head; then a
// task runs tiles of queries over them, an L2-sized chunk at a time. Tasks are independent, and neither chunks nor tasks change the order
// of a tile's sums, so the result does not depend on the number of threads.
#include "cpu/packed_forward.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/check.h"
#include "cpu/forward_pass.h"
#include "cpu/packed_keys.h"
#include "cpu/row_spans.h"

namespace foveal::cpu {
namespace {

constexpr double log2e = ScoreScale<float>::kLog2e, ln2 = ScoreScale<float>::kLn2;
/// Below, maxima in base 2 are off by at most 1: exponents stay small, and the row sums absorb the difference.
constexpr float max_exponent = 16777216;

struct PackedMemory : CallMemory {
  PackedKeys::Memory keys;
};

using PackedCall = ForwardCallOf<float, PackedMemory>;

struct PackedTile : RunWalk {
  void* q;
  float *acc, *max, *sums;
};

struct PackedWorker : WorkerOf<PackedTile> {
  RowSpans::Memory spans;
  void *scratch, *key_block;  ///< key_block: a copy of a block that spans pages
};

class PackedForward final : public ForwardPass<float, PackedCall, PackedWorker> {
  using Call = PackedCall;
  using Worker = PackedWorker;

 public:
  PackedForward(std::unique_ptr<const Setup<float>> setup, Fallback fallback)
      : ForwardPass(std::move(setup), std::move(fallback)),
        ops_(*s_.ops.packed_forward),
        block_(s_.geometry.block_kv),
        keys_(s_, ops_),
        spans_(s_) {
    lay_out();
    const std::size_t tile_bytes = ops_.q_bytes(s_.dim) + ops_.acc_bytes(s_.dim_v) + sums_count() * sizeof(float);
    plan_tasks(tiles_per_task(tile_bytes, 4 * s_.workers(), 32));
  }

 private:
  // ---------------------------------------------------------------------------------------------------------------- planning

  std::string path() const override { return "forward.rows"; }
  std::size_t lanes() const { return static_cast<std::size_t>(ops_.rows); }
  std::size_t sums_count() const { return 2 * 16 * lanes(); }

  void lay_out() {
    memory_.part(&PackedMemory::keys, keys_.layout());

    tile_.bytes(&PackedTile::q, ops_.q_bytes(s_.dim));
    tile_.array(&PackedTile::acc, ops_.acc_bytes(s_.dim_v) / sizeof(float));
    tile_.array(&PackedTile::max, lanes());
    tile_.array(&PackedTile::sums, sums_count());

    worker_.part(&Worker::spans, RowSpans::layout());
    worker_.bytes(&Worker::scratch, ops_.scratch_bytes(block_));
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
    if (!finite && s_.tape.has_mask()) return false;
    std::atomic<bool> in_range = true;
    each(tasks.size(), workers, [&](std::size_t i, Worker& worker) {
      if (in_range && !run_task(call, tasks[i], worker)) in_range = false;
    });
    return in_range;
  }

  /// False where a maximum is too large for exponents computed by one fused multiply-subtract.
  bool run_task(const Call& call, const Task& task, Worker& worker) const {
    const Work& work = *call.work;
    const Sequence& sequence = work.sequence(work.group(task));
    const std::int64_t first_block = call.keys.first_block[task.group];
    ForwardVisit visit{};
    visit.k = keys_.k(call.keys, first_block), visit.v = keys_.v(call.keys, first_block);
    visit.scratch = worker.scratch;
    visit.multiplier = s_.scale.log2, visit.dim = s_.dim, visit.dim_v = s_.dim_v, visit.block = block_;
    const int count = static_cast<int>(task.tile_end - task.tile_begin);
    std::int32_t blocks = 0;
    for (int t = 0; t < count; ++t) {
      PackedTile& state = worker.tiles[t];
      if (t + 1 < count) fetch_lanes(call.q, sequence, work.tile(task.tile_begin + t + 1), s_.dim);
      start(call, sequence, work.tile(task.tile_begin + t), state);
      blocks = std::max(blocks, state.end());
    }
    const std::int32_t chunk = keys_.chunk();
    for (std::int32_t begin = 0; begin < blocks; begin += chunk)
      for (int t = 0; t < count; ++t) {
        PackedTile& state = worker.tiles[t];
        visit.q = state.q, visit.acc = state.acc, visit.max = state.max, visit.sums = state.sums;
        spans_.visit(ops_, sequence, call.data, begin, std::min(begin + chunk, blocks), state, worker.spans, worker.tape_scratch, visit);
      }
    bool in_range = true;
    for (int t = 0; t < count; ++t) in_range &= finish(call, sequence, worker.tiles[t]);
    return in_range;
  }

  void start(const Call& call, const Sequence& sequence, const LaneTile& tile, PackedTile& state) const {
    state.start(*call.work, sequence, tile, s_.problem);
    ops_.pack_q(LanePointers(call.q, sequence, tile).in(tile.lanes()), s_.dim, s_.sign, state.q);
    std::fill_n(state.acc, ops_.acc_bytes(s_.dim_v) / sizeof(float), 0.0f);
    std::fill_n(state.max, lanes(), std::numeric_limits<float>::lowest());
    std::fill_n(state.sums, 16 * lanes(), 0.0f);
    if (call.sink)
      for_each_sink(*call.sink, tile, [&](int lane, double logit) {
        state.max[lane] = static_cast<float>(logit * log2e);
        state.sums[lane * 16] = 1;
      });
  }

  bool finish(const Call& call, const Sequence& sequence, const PackedTile& state) const {
    alignas(64) float sum[max_lanes], factor[max_lanes] = {};
    const LaneTile& tile = *state.tile;
    ops_.add_sums(state.sums, sum);
    finish_sums(call, sequence, tile, sum, factor,
                [&](int lane) { return (static_cast<double>(state.max[lane]) + std::log2(static_cast<double>(sum[lane]))) * ln2; });
    ops_.write(state.acc, s_.dim_v, factor, LanePointers(call.out, sequence, tile).out(tile.lanes()));
    return std::all_of(state.max, state.max + tile.lanes(),
                       [](float max) { return max == -std::numeric_limits<float>::max() || !(std::abs(max) > max_exponent); });
  }

  const PackedForwardOps& ops_;
  const int block_;
  const PackedKeys keys_;
  const RowSpans spans_;
};

}  // namespace

bool packed_forward_serves(const Setup<float>& setup) {
  const problem::Problem& problem = setup.problem;
  const BlockOps<float>& ops = setup.ops;
  const Attention& attention = problem.attention;
  if (!ops.packed_forward || !setup.masks_by_ranges() || problem.dtype != DType::bf16 || attention.checked || attention.dropout_p > 0 ||
      problem.has_score_mod())
    return false;
  // Decode reads keys once: packing would not pay, and split-KV parallelises over keys.
  const std::int64_t rows = setup.mean_rows();
  const std::int64_t tiles = problem.batch * problem.heads_kv * (rows / ops.packed_forward->rows);
  const std::int64_t seqlen_kv = problem.ragged_kv() ? problem.total_kv / std::max<std::int64_t>(problem.batch, 1) : problem.seqlen_kv;
  return rows >= ops.packed_forward->rows && (tiles >= 8 || seqlen_kv <= 2048);
}

std::unique_ptr<planning::Executable> make_packed_forward(const problem::Problem& problem, const Target& target, const BlockOps<float>& ops,
                                                          const PlanOptions& options, std::unique_ptr<planning::Executable> fallback) {
  const int block = ops.packed_forward->block(static_cast<int>(problem.head_dim), static_cast<int>(problem.head_dim_v));
  return std::make_unique<PackedForward>(
      std::make_unique<const Setup<float>>(problem, target, ops, options, Geometry{ops.packed_forward->rows, block}),
      Fallback{std::move(fallback),
               base::join("where ", problem.has_mask() ? "v holds infinity or NaN, or " : "", "a maximum exceeds 2^24")});
}

}  // namespace foveal::cpu
