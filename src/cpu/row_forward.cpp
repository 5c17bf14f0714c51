// The forward pass with rows of queries (kernels/row_forward.h). Keys and values are packed once for each sequence and kv head, by all
// threads; then a task takes tiles of queries past them, a chunk that stays in the second-level cache at a time. Nothing passes between
// tasks, and neither chunks nor tasks change the order of a tile's sums, so the result does not depend on who runs what.
#include "cpu/row_forward.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/check.h"
#include "cpu/pass.h"

namespace foveal::cpu {
namespace {

constexpr double log2e = ScoreScale<float>::kLog2e, ln2 = ScoreScale<float>::kLn2;
/// Maxima in base 2 are off by no more than 1 below: exponents stay small, and row sums take care of the rest.
constexpr float too_far = 16777216;

constexpr int max_spans = 64, max_ranges = 16;  ///< of a visit

struct RowMemory : CallMemory {
  void *packed_k = nullptr, *packed_v = nullptr;
  std::int64_t* first_block = nullptr;  ///< of each group, in the packed keys
};

struct RowCall : CallOf<RowMemory> {
  RowCall(const problem::Buffers& b, const Setup<float>& s)
      : CallOf(b), q(b.q), out(b.out), k(s.problem, b, b.k), v(s.problem, b, b.v), lse(b.lse) {
    if (s.problem.sink >= 0) sink = &b.params[static_cast<std::size_t>(s.problem.sink)];
  }
  HeadRows q, out;
  KeyBlocks k, v;
  LaneScalars<float> lse;
  const TensorView* sink = nullptr;
};

struct RowTile : TileWalk {
  const mask::Run *run, *run_end;  ///< the first run that is not behind it
  void* q;
  float *acc, *max, *sums;
};

struct RowSlot : SlotOf<RowTile> {
  KeySpan* spans;
  std::int32_t* ranges;       ///< first and last of all lanes, max_ranges times
  void *scratch, *key_block;  ///< key_block: of keys in pages, together
};

class RowForward final : public TiledPass<float, RowCall, RowSlot, Tasks> {
  using Call = RowCall;
  using Slot = RowSlot;

 public:
  RowForward(const problem::Problem& problem, const Target& target, const BlockOps<float>& ops, const PlanOptions& options, int block,
             Otherwise otherwise)
      : TiledPass(problem, target, ops, options, {ops.rows->rows, block}, std::move(otherwise)),
        ops_(*ops.rows),
        block_(block),
        tiles_per_task_(choose_tiles_per_task()) {
    lay_out();
    plan(tiles_per_task_, static_cast<std::size_t>(s_.planner.max_tiles()) * sizeof(Task) + 64);
  }

 private:
  // ---------------------------------------------------------------------------------------------------------------- planning

  std::string path() const override { return "forward.rows"; }
  double products() const override { return 1.0; }
  void describe_strategy(Explanation& explanation) const override {
    explanation.details.emplace_back("tiles in a task", std::to_string(tiles_per_task_));
  }
  Tasks make_lists(const Work& work) const override { return work.tasks(tiles_per_task_); }

  int choose_tiles_per_task() const {
    // Tiles share a chunk's way through the caches; what they carry along should stay in L2 beside it.
    const std::size_t tile_bytes = ops_.q_bytes(s_.dim) + ops_.acc_bytes(s_.dim_v) + sums_count() * sizeof(float);
    const std::int64_t fit = static_cast<std::int64_t>(std::size_t{512} * 1024 / tile_bytes);
    const std::int64_t tiles = s_.problem.batch * s_.problem.heads_kv * s_.planner.max_tiles_per_group();
    return static_cast<int>(std::clamp<std::int64_t>(std::min(fit, tiles / (4 * s_.slots())), 1, 32));
  }
  std::size_t lanes() const { return static_cast<std::size_t>(ops_.rows); }
  std::size_t sums_count() const { return 2 * 16 * lanes(); }
  std::size_t k_block_bytes() const { return ops_.k_bytes(block_, s_.dim); }
  std::size_t v_block_bytes() const { return ops_.v_bytes(block_, s_.dim_v); }
  std::int32_t chunk_blocks() const { return std::max(1, static_cast<int>(std::size_t{512} * 1024 / (k_block_bytes() + v_block_bytes()))); }

  void lay_out() {
    const auto blocks = static_cast<std::size_t>(s_.planner.max_blocks());
    memory_.bytes(&RowMemory::packed_k, blocks * k_block_bytes());
    memory_.bytes(&RowMemory::packed_v, blocks * v_block_bytes());
    memory_.array(&RowMemory::first_block, static_cast<std::size_t>(s_.planner.max_groups()));

    tile_.bytes(&RowTile::q, ops_.q_bytes(s_.dim));
    tile_.array(&RowTile::acc, ops_.acc_bytes(s_.dim_v) / sizeof(float));
    tile_.array(&RowTile::max, lanes());
    tile_.array(&RowTile::sums, sums_count());

    slot_.array(&Slot::spans, max_spans);
    slot_.array(&Slot::ranges, 2 * max_lanes * max_ranges);
    slot_.bytes(&Slot::scratch, ops_.scratch_bytes(block_));
    slot_.bytes(&Slot::key_block, KeyBlocks::copy_bytes(s_.problem, block_, std::max(s_.dim, s_.dim_v)));
  }

  // ------------------------------------------------------------------------------------------------------------------ running

  bool run_lists(const Call& call, const Tasks& tasks, Slot* slots) const override {
    const Work& work = *call.work;
    const std::int64_t longest = work.number_blocks(block_, call.first_block);
    constexpr std::int64_t keys_worth_a_task = 1024;
    const std::int64_t parts = std::max<std::int64_t>(1, longest * block_ / keys_worth_a_task);
    std::atomic<bool> finite = true;
    base::parallel_for(s_.executor, static_cast<std::int64_t>(work.groups.size()) * parts, [&](std::int64_t i, int slot) {
      if (!pack(call, static_cast<std::size_t>(i / parts), i % parts, parts, slots[slot])) finite = false;
    });
    if (!finite && s_.tape.has_mask()) return false;
    std::atomic<bool> near = true;
    each(tasks.size(), slots, [&](std::size_t i, Slot& slot) {
      if (near && !run_task(call, tasks[i], slot)) near = false;
    });
    return near;
  }

  char* packed_k(const Call& call, std::int64_t block) const {
    return static_cast<char*>(call.packed_k) + static_cast<std::size_t>(block) * k_block_bytes();
  }
  char* packed_v(const Call& call, std::int64_t block) const {
    return static_cast<char*>(call.packed_v) + static_cast<std::size_t>(block) * v_block_bytes();
  }

  /// A part of a group's blocks; whether all of v is finite.
  bool pack(const Call& call, std::size_t g, std::int64_t part, std::int64_t parts, const Slot& slot) const {
    const TileGroup& group = call.work->groups[g];
    const Sequence& sequence = call.work->sequence(group);
    const std::int64_t blocks = sequence.blocks(block_);
    bool finite = true;
    for (std::int64_t b = blocks * part / parts; b < blocks * (part + 1) / parts; ++b) {
      const int keys = s_.block_keys(sequence, static_cast<std::int32_t>(b));
      const int next_keys = std::max(0, s_.block_keys(sequence, static_cast<std::int32_t>(b + 1)));
      const auto rows = [&](const KeyBlocks& from) { return from.block(sequence, b * block_, keys, group.kv_head, slot.key_block); };
      call.k.next(sequence, (b + 1) * block_, next_keys, group.kv_head, s_.dim).fetch(0, 1);
      ops_.pack_k(rows(call.k), keys, block_, s_.dim, packed_k(call, call.first_block[g] + b));
      call.v.next(sequence, (b + 1) * block_, next_keys, group.kv_head, s_.dim_v).fetch(0, 1);
      finite &= ops_.pack_v(rows(call.v), keys, block_, s_.dim_v, packed_v(call, call.first_block[g] + b));
    }
    return finite;
  }

  /// False where a maximum is too far for exponents that are one multiply-add.
  bool run_task(const Call& call, const Task& task, Slot& slot) const {
    const Work& work = *call.work;
    const Sequence& sequence = work.sequence(work.group(task));
    const std::int64_t first_block = call.first_block[task.group];
    RowVisit visit{};
    visit.k = packed_k(call, first_block), visit.v = packed_v(call, first_block);
    visit.scratch = slot.scratch, visit.spans = slot.spans;
    visit.multiplier = s_.scale.log2, visit.dim = s_.dim, visit.dim_v = s_.dim_v, visit.block = block_;
    const int count = static_cast<int>(task.tile_end - task.tile_begin);
    std::int32_t blocks = 0;
    for (int t = 0; t < count; ++t) {
      RowTile& state = slot.tiles[t];
      if (t + 1 < count) fetch_lanes(call.q, sequence, work.tile(task.tile_begin + t + 1), s_.dim);
      start(call, sequence, work.tile(task.tile_begin + t), state);
      if (state.run != state.run_end) blocks = std::max(blocks, state.run_end[-1].end);
    }
    for (std::int32_t chunk = 0; chunk < blocks; chunk += chunk_blocks())
      for (int t = 0; t < count; ++t) pass(call, sequence, chunk, std::min(chunk + chunk_blocks(), blocks), slot.tiles[t], slot, visit);
    bool near = true;
    for (int t = 0; t < count; ++t) near &= finish(call, sequence, slot.tiles[t]);
    return near;
  }

  void start(const Call& call, const Sequence& sequence, const LaneTile& tile, RowTile& state) const {
    state.start(*call.work, sequence, tile, s_.problem);
    state.run = call.work->runs.data() + tile.run_begin, state.run_end = call.work->runs.data() + tile.run_end;
    const LanePointers rows(call.q, sequence, tile);
    ops_.pack_q({rows.row, tile.lanes(), call.q.stride, call.q.dtype}, s_.dim, s_.sign, state.q);
    std::fill_n(state.acc, ops_.acc_bytes(s_.dim_v) / sizeof(float), 0.0f);
    std::fill_n(state.max, lanes(), std::numeric_limits<float>::lowest());
    std::fill_n(state.sums, 16 * lanes(), 0.0f);
    if (!call.sink) return;
    for_each_lane(tile, [&](int lane, std::int32_t head, std::int32_t) {  // the sink is a score that is there before the first key
      const double logit = base::load(call.sink->data, call.sink->dtype, head * call.sink->strides[0]) * log2e;
      if (logit == -std::numeric_limits<double>::infinity()) return;
      state.max[lane] = static_cast<float>(logit);
      state.sums[lane * 16] = 1;
    });
  }

  /// A tile past the blocks of a chunk.
  void pass(const Call& call, const Sequence& sequence, std::int32_t begin, std::int32_t end, RowTile& state, const Slot& slot,
            RowVisit& visit) const {
    constexpr int granule = KeySpan::granule;
    const std::int32_t granules = block_ / granule, whole = sequence.seqlen_kv / block_;
    visit.q = state.q, visit.acc = state.acc, visit.max = state.max, visit.sums = state.sums;
    visit.count = 0;
    int partial = 0;
    const auto add = [&](const KeySpan& span) {
      slot.spans[visit.count++] = span;
      if (visit.count < max_spans && partial < max_ranges) return;
      ops_.visit(visit);
      visit.count = partial = 0;
    };
    for (; state.run != state.run_end && state.run->begin < end; ++state.run) {
      const mask::Run& run = *state.run;
      std::int32_t block = std::max(run.begin, begin);
      const std::int32_t last = std::min(run.end, end), full = run.full ? std::min(last, whole) : block;
      if (block < full) add({block * granules, full * granules, full * granules, {}});
      for (block = std::max(block, full); block < last; ++block) {
        std::int32_t* first = slot.ranges + 2 * max_lanes * partial;
        const LaneRanges ranges{first, first + max_lanes};
        const KeyRange keys = block_ranges(call, sequence, state, block, run.full, first, first + max_lanes, slot);
        if (keys.begin == keys.end) continue;
        ++partial;
        const std::int32_t at = block * granules, first_granule = keys.begin / granule, end_granule = (keys.end + granule - 1) / granule;
        const std::int32_t kept_by_all = end_of_whole(ranges, state.tile->lanes(), first_granule);
        add({at + first_granule, at + kept_by_all, at + end_granule, ranges});
      }
      if (run.end > end) break;
    }
    if (visit.count > 0) ops_.visit(visit);
  }

  /// The end of the granules from `begin` on whose keys every lane keeps.
  static std::int32_t end_of_whole(const LaneRanges& ranges, int lanes, std::int32_t begin) {
    constexpr int granule = KeySpan::granule;
    if (*std::max_element(ranges.first, ranges.first + lanes) > begin * granule) return begin;
    return std::max(begin, *std::min_element(ranges.last, ranges.last + lanes) / granule);
  }

  /// The keys of a block that each lane keeps, and the range that any does.
  KeyRange block_ranges(const Call& call, const Sequence& sequence, const RowTile& state, std::int32_t block, bool full,
                        std::int32_t* first, std::int32_t* last, const Slot& slot) const {
    const KeyRange all{0, s_.block_keys(sequence, block)};
    std::fill_n(first, max_lanes, 0);
    std::fill_n(last, max_lanes, full ? all.end : 0);
    if (full) return all;
    s_.tape.lane_ranges(s_.frame(sequence, state.lanes, block, all), call.data, first, last, slot.tape_scratch);
    return trim({first, last}, state.lanes.count, 1, all);
  }

  bool finish(const Call& call, const Sequence& sequence, const RowTile& state) const {
    alignas(64) float sum[max_lanes], factor[max_lanes] = {};
    const LanePointers rows(call.out, sequence, *state.tile);
    bool near = true;
    ops_.add_sums(state.sums, sum);
    for_each_lane(*state.tile, [&](int lane, std::int32_t head, std::int32_t q) {
      const bool empty = sum[lane] == 0;
      near &= state.max[lane] == -std::numeric_limits<float>::max() || !(std::abs(state.max[lane]) > too_far);
      factor[lane] = empty ? 0.0f : 1 / sum[lane];
      if (call.lse.present())
        call.lse.at(sequence.batch, head, sequence.q_begin + q) =
            empty ? -std::numeric_limits<float>::infinity()
                  : static_cast<float>((static_cast<double>(state.max[lane]) + std::log2(static_cast<double>(sum[lane]))) * ln2);
    });
    ops_.write(state.acc, s_.dim_v, factor, {rows.row, state.tile->lanes(), call.out.stride, call.out.dtype});
    return near;
  }

  const RowOps& ops_;
  const int block_, tiles_per_task_;
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
      problem, target, ops, options, block,
      Otherwise{std::move(otherwise),
                base::join("where ", problem.has_mask() ? "v holds infinity or NaN, or " : "", "a maximum exceeds 2^24")});
}

}  // namespace foveal::cpu
