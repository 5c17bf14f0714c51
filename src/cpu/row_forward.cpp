// The forward pass with rows of queries (kernels/row_forward.h). Keys and values are packed once for each sequence and kv head, by all
// threads; then a task takes tiles of queries past them, a chunk that stays in the second-level cache at a time. Nothing passes between
// tasks, and neither chunks nor tasks change the order of a tile's sums, so the result does not depend on who runs what.
#include "cpu/row_forward.h"

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
/// Maxima in base 2 are off by no more than 1 below: exponents stay small, and row sums take care of the rest.
constexpr float too_far = 16777216;

struct RowMemory : CallMemory {
  PackedKeys::Memory keys;
};

using RowCall = ForwardCallOf<float, RowMemory>;

struct RowTile : RunWalk {
  void* q;
  float *acc, *max, *sums;
};

struct RowSlot : SlotOf<RowTile> {
  RowSpans::Memory spans;
  void *scratch, *key_block;  ///< key_block: of keys in pages, together
};

class RowForward final : public ForwardPass<float, RowCall, RowSlot> {
  using Call = RowCall;
  using Slot = RowSlot;

 public:
  RowForward(std::unique_ptr<const Setup<float>> setup, Otherwise otherwise)
      : ForwardPass(std::move(setup), std::move(otherwise)), ops_(*s_.ops.rows), block_(s_.geometry.block_kv), keys_(s_, ops_), spans_(s_) {
    lay_out();
    const std::size_t tile_bytes = ops_.q_bytes(s_.dim) + ops_.acc_bytes(s_.dim_v) + sums_count() * sizeof(float);
    plan_tasks(tiles_per_task(tile_bytes, 4 * s_.slots(), 32));
  }

 private:
  // ---------------------------------------------------------------------------------------------------------------- planning

  std::string path() const override { return "forward.rows"; }
  std::size_t lanes() const { return static_cast<std::size_t>(ops_.rows); }
  std::size_t sums_count() const { return 2 * 16 * lanes(); }

  void lay_out() {
    memory_.part(&RowMemory::keys, keys_.layout());

    tile_.bytes(&RowTile::q, ops_.q_bytes(s_.dim));
    tile_.array(&RowTile::acc, ops_.acc_bytes(s_.dim_v) / sizeof(float));
    tile_.array(&RowTile::max, lanes());
    tile_.array(&RowTile::sums, sums_count());

    slot_.part(&Slot::spans, RowSpans::layout());
    slot_.bytes(&Slot::scratch, ops_.scratch_bytes(block_));
    slot_.bytes(&Slot::key_block, keys_.scratch_bytes());
  }

  // ------------------------------------------------------------------------------------------------------------------ running

  bool run_lists(const Call& call, const Tasks& tasks, Slot* slots) const override {
    const Work& work = *call.work;
    const std::int64_t longest = work.number_blocks(block_, call.keys.first_block);
    constexpr std::int64_t keys_worth_a_task = 1024;
    const std::int64_t parts = std::max<std::int64_t>(1, longest * block_ / keys_worth_a_task);
    std::atomic<bool> finite = true;
    base::parallel_for(s_.executor, static_cast<std::int64_t>(work.groups.size()) * parts, [&](std::int64_t i, int slot) {
      if (!keys_.pack(call.keys, call.k, call.v, work, static_cast<std::size_t>(i / parts), i % parts, parts, slots[slot].key_block))
        finite = false;
    });
    if (!finite && s_.tape.has_mask()) return false;
    std::atomic<bool> near = true;
    each(tasks.size(), slots, [&](std::size_t i, Slot& slot) {
      if (near && !run_task(call, tasks[i], slot)) near = false;
    });
    return near;
  }

  /// False where a maximum is too far for exponents that are one multiply-add.
  bool run_task(const Call& call, const Task& task, Slot& slot) const {
    const Work& work = *call.work;
    const Sequence& sequence = work.sequence(work.group(task));
    const std::int64_t first_block = call.keys.first_block[task.group];
    RowVisit visit{};
    visit.k = keys_.k(call.keys, first_block), visit.v = keys_.v(call.keys, first_block);
    visit.scratch = slot.scratch;
    visit.multiplier = s_.scale.log2, visit.dim = s_.dim, visit.dim_v = s_.dim_v, visit.block = block_;
    const int count = static_cast<int>(task.tile_end - task.tile_begin);
    std::int32_t blocks = 0;
    for (int t = 0; t < count; ++t) {
      RowTile& state = slot.tiles[t];
      if (t + 1 < count) fetch_lanes(call.q, sequence, work.tile(task.tile_begin + t + 1), s_.dim);
      start(call, sequence, work.tile(task.tile_begin + t), state);
      blocks = std::max(blocks, state.end());
    }
    const std::int32_t chunk = keys_.chunk();
    for (std::int32_t begin = 0; begin < blocks; begin += chunk)
      for (int t = 0; t < count; ++t) {
        RowTile& state = slot.tiles[t];
        visit.q = state.q, visit.acc = state.acc, visit.max = state.max, visit.sums = state.sums;
        spans_.visit(ops_, sequence, call.data, begin, std::min(begin + chunk, blocks), state, slot.spans, slot.tape_scratch, visit);
      }
    bool near = true;
    for (int t = 0; t < count; ++t) near &= finish(call, sequence, slot.tiles[t]);
    return near;
  }

  void start(const Call& call, const Sequence& sequence, const LaneTile& tile, RowTile& state) const {
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

  bool finish(const Call& call, const Sequence& sequence, const RowTile& state) const {
    alignas(64) float sum[max_lanes], factor[max_lanes] = {};
    const LaneTile& tile = *state.tile;
    ops_.add_sums(state.sums, sum);
    finish_sums(call, sequence, tile, sum, factor,
                [&](int lane) { return (static_cast<double>(state.max[lane]) + std::log2(static_cast<double>(sum[lane]))) * ln2; });
    ops_.write(state.acc, s_.dim_v, factor, LanePointers(call.out, sequence, tile).out(tile.lanes()));
    return std::all_of(state.max, state.max + tile.lanes(),
                       [](float max) { return max == -std::numeric_limits<float>::max() || !(std::abs(max) > too_far); });
  }

  const RowOps& ops_;
  const int block_;
  const PackedKeys keys_;
  const RowSpans spans_;
};

}  // namespace

bool row_forward_serves(const problem::Problem& problem, const BlockOps<float>& ops) {
  const Attention& attention = problem.attention;
  if (!ops.rows || problem.dtype != DType::bf16 || attention.checked || attention.dropout_p > 0 || problem.has_score_mod()) return false;
  // Decoding reads keys once: packing would not pay, and split-KV shares them out.
  const std::int64_t rows =
      problem.group_size * (problem.varlen ? problem.total_q / std::max<std::int64_t>(problem.batch, 1) : problem.seqlen_q);
  const std::int64_t tiles = problem.batch * problem.heads_kv * (rows / ops.rows->rows);
  const std::int64_t seqlen_kv = problem.ragged_kv() ? problem.total_kv / std::max<std::int64_t>(problem.batch, 1) : problem.seqlen_kv;
  return rows >= ops.rows->rows && (tiles >= 8 || seqlen_kv <= 2048);
}

std::unique_ptr<planning::Executable> make_row_forward(const problem::Problem& problem, const Target& target, const BlockOps<float>& ops,
                                                       const PlanOptions& options, std::unique_ptr<planning::Executable> otherwise) {
  const int block = ops.rows->block(static_cast<int>(problem.head_dim), static_cast<int>(problem.head_dim_v));
  return std::make_unique<RowForward>(
      std::make_unique<const Setup<float>>(problem, target, ops, options, Geometry{ops.rows->rows, block}),
      Otherwise{std::move(otherwise),
                base::join("where ", problem.has_mask() ? "v holds infinity or NaN, or " : "", "a maximum exceeds 2^24")});
}

}  // namespace foveal::cpu
