// The forward pass with rows of queries (kernels/row_forward.h). Keys and values are packed once for each sequence and kv head, by all
// threads; then a task takes tiles of queries past them, a chunk that stays in the second-level cache at a time. Nothing passes between
// tasks, and neither chunks nor tasks change the order of a tile's sums, so the result does not depend on who runs what.
#include "cpu/row_forward.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "cpu/describe.h"

namespace foveal::cpu {
namespace {

constexpr double log2e = 1.4426950408889634074, ln2 = 0.69314718055994530942;
/// Maxima in base 2 are off by no more than 1 below: exponents stay small, and row sums take care of the rest.
constexpr float too_far = 16777216;

class RowPass final : public planning::Executable {
 public:
  RowPass(const problem::Problem& problem, const Target& target, const BlockOps<float>& ops, const PlanOptions& options,
          std::unique_ptr<planning::Executable> otherwise)
      : ops_(*ops.rows),
        block_(ops_.block(static_cast<int>(problem.head_dim), static_cast<int>(problem.head_dim_v))),
        s_(problem, target, ops, options, {ops_.rows, block_}),
        otherwise_(std::move(otherwise)),
        tiles_per_task_(choose_tiles_per_task()) {
    if (s_.work) tasks_ = s_.work->tasks(tiles_per_task_);
    Carver carver(nullptr);
    carve(carver, nullptr);
    workspace_bytes_ = std::max(carver.used(), otherwise_->workspace_bytes());
  }

  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  std::string kernel() const override { return std::string("cpu.") + s_.ops.name + ".forward.rows"; }
  void describe(Explanation& explanation) const override {
    describe_work(s_, explanation, 1.0);
    if (s_.work) describe_tasks(*s_.work, tasks_, explanation.schedule);
    explanation.details.emplace_back("tiles in a task", std::to_string(tiles_per_task_));
  }

  void run(const problem::Buffers& buffers, void* workspace, Stream stream) const override {
    Call call(buffers, s_);
    Carver carver(workspace);
    Slot* slots = carve(carver, &call);
    bool done = false;
    if (s_.work) {
      done = run_work(call, *s_.work, tasks_, slots);
    } else {
      std::pmr::monotonic_buffer_resource memory(call.list_memory, list_bytes());
      call.data = s_.tape.bind(buffers.params, call.param_memory);
      const Work work = s_.planner.plan(buffers, &memory);
      done = run_work(call, work, work.tasks(tiles_per_task_), slots);
    }
    if (!done) otherwise_->run(buffers, workspace, stream);
  }

 private:
  struct Call {
    Call(const problem::Buffers& b, const Setup<float>& s)
        : buffers(b), q(b.q), out(b.out), k(s.problem, b, b.k), v(s.problem, b, b.v), lse(b.lse) {
      if (s.problem.sink >= 0) sink = &b.params[static_cast<std::size_t>(s.problem.sink)];
    }
    const problem::Buffers& buffers;
    HeadRows q, out;
    KeyBlocks k, v;
    LaneScalars<float> lse;
    const TensorView* sink = nullptr;
    void *param_memory = nullptr, *list_memory = nullptr;
    char *packed_k = nullptr, *packed_v = nullptr;
    std::int64_t* first_block = nullptr;  ///< of each group, in the packed keys
    TapeData data;
  };

  /// A tile on its way past the chunks.
  struct TileState {
    const LaneTile* tile;
    const mask::Run *run, *run_end;  ///< the first run that is not behind it
    LaneSymbols* symbols;
    void* q;
    float *acc, *max, *sums;
  };

  static constexpr int max_spans = 64, max_ranges = 16;  ///< of a visit
  struct Slot {
    TileState* states;
    KeySpan* spans;
    std::int32_t* ranges;  ///< first and last of all lanes, max_ranges times
    void *scratch, *tape_scratch;
    void* key_block;  ///< of keys in pages, together
  };

  int choose_tiles_per_task() const {
    // Tiles share a chunk's way through the caches; what they carry along should stay in L2 beside it.
    const std::size_t tile_bytes = ops_.q_bytes(s_.dim) + ops_.acc_bytes(s_.dim_v) + sums_count() * sizeof(float);
    const std::int64_t fit = static_cast<std::int64_t>(std::size_t{512} * 1024 / tile_bytes);
    const std::int64_t tiles = s_.problem.batch * s_.problem.heads_kv * s_.planner.max_tiles_per_group();
    return static_cast<int>(std::clamp<std::int64_t>(std::min(fit, tiles / (4 * s_.slots())), 1, 32));
  }
  std::size_t list_bytes() const {
    return s_.work ? 0 : s_.planner.run_bytes() + static_cast<std::size_t>(s_.planner.max_tiles()) * sizeof(Task) + 64;
  }
  std::size_t lanes() const { return static_cast<std::size_t>(ops_.rows); }
  std::size_t sums_count() const { return 2 * 16 * lanes(); }
  std::size_t k_block_bytes() const { return ops_.k_bytes(block_, s_.dim); }
  std::size_t v_block_bytes() const { return ops_.v_bytes(block_, s_.dim_v); }
  std::int32_t chunk_blocks() const { return std::max(1, static_cast<int>(std::size_t{512} * 1024 / (k_block_bytes() + v_block_bytes()))); }

  Slot* carve(Carver& carver, Call* call) const {
    void* param_memory = carver.bytes(s_.tape.data_bytes());
    void* list_memory = carver.bytes(list_bytes());
    const auto blocks = static_cast<std::size_t>(s_.planner.max_blocks());
    char* packed_k = static_cast<char*>(carver.bytes(blocks * k_block_bytes()));
    char* packed_v = static_cast<char*>(carver.bytes(blocks * v_block_bytes()));
    std::int64_t* first_block = carver.take<std::int64_t>(static_cast<std::size_t>(s_.planner.max_groups()));
    if (call) {
      call->param_memory = param_memory, call->list_memory = list_memory;
      call->packed_k = packed_k, call->packed_v = packed_v, call->first_block = first_block;
    }
    Slot* slots = carver.take<Slot>(static_cast<std::size_t>(s_.slots()));
    for (int i = 0; i < s_.slots(); ++i) {
      Slot slot;
      slot.states = carver.take<TileState>(static_cast<std::size_t>(tiles_per_task_));
      for (int t = 0; t < tiles_per_task_; ++t) {
        TileState state{};
        state.symbols = carver.take<LaneSymbols>(1);
        state.q = carver.bytes(ops_.q_bytes(s_.dim));
        state.acc = static_cast<float*>(carver.bytes(ops_.acc_bytes(s_.dim_v)));
        state.max = carver.take<float>(lanes());
        state.sums = carver.take<float>(sums_count());
        if (call) slot.states[t] = state;
      }
      slot.spans = carver.take<KeySpan>(max_spans);
      slot.ranges = carver.take<std::int32_t>(2 * max_lanes * max_ranges);
      slot.scratch = carver.bytes(ops_.scratch_bytes(block_));
      slot.tape_scratch = carver.bytes(s_.tape.scratch_bytes(block_, ops_.rows));
      slot.key_block = carver.bytes(KeyBlocks::copy_bytes(s_.problem, block_, std::max(s_.dim, s_.dim_v)));
      if (call) slots[i] = slot;
    }
    return slots;
  }

  /// False where this pass must not be the one: what was written by then counts for nothing.
  bool run_work(Call& call, const Work& work, const std::pmr::vector<Task>& tasks, Slot* slots) const {
    std::int64_t blocks = 0, longest = 0;
    for (std::size_t g = 0; g < work.groups.size(); ++g) {
      call.first_block[g] = blocks;
      const std::int64_t of_group = blocks_of(work, work.groups[g]);
      blocks += of_group, longest = std::max(longest, of_group);
    }
    constexpr std::int64_t keys_worth_a_task = 1024;
    const std::int64_t parts = std::max<std::int64_t>(1, longest * block_ / keys_worth_a_task);
    std::atomic<bool> finite = true;
    base::parallel_for(s_.executor, static_cast<std::int64_t>(work.groups.size()) * parts, [&](std::int64_t i, int slot) {
      if (!pack(call, work, static_cast<std::size_t>(i / parts), i % parts, parts, slots[slot])) finite = false;
    });
    if (!finite && s_.tape.has_mask()) return false;
    if (s_.work) call.data = s_.tape.bind(call.buffers.params, call.param_memory);
    std::atomic<bool> near = true;
    base::parallel_for(s_.executor, static_cast<std::int64_t>(tasks.size()), [&](std::int64_t i, int slot) {
      const TaskMode mode(s_.ops.enter, s_.ops.leave);
      if (near && !run_task(call, work, tasks[static_cast<std::size_t>(i)], slots[slot])) near = false;
    });
    return near;
  }

  std::int64_t blocks_of(const Work& work, const TileGroup& group) const {
    return (work.sequences[static_cast<std::size_t>(group.sequence)].seqlen_kv + block_ - 1) / block_;
  }
  char* packed_k(const Call& call, std::int64_t block) const { return call.packed_k + static_cast<std::size_t>(block) * k_block_bytes(); }
  char* packed_v(const Call& call, std::int64_t block) const { return call.packed_v + static_cast<std::size_t>(block) * v_block_bytes(); }

  /// A part of a group's blocks; whether all of v is finite.
  bool pack(const Call& call, const Work& work, std::size_t g, std::int64_t part, std::int64_t parts, const Slot& slot) const {
    const TileGroup& group = work.groups[g];
    const Sequence& sequence = work.sequences[static_cast<std::size_t>(group.sequence)];
    const std::int64_t blocks = blocks_of(work, group);
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
  bool run_task(const Call& call, const Work& work, const Task& task, Slot& slot) const {
    const TileGroup& group = work.groups[static_cast<std::size_t>(task.group)];
    const Sequence& sequence = work.sequences[static_cast<std::size_t>(group.sequence)];
    const std::int64_t first_block = call.first_block[task.group];
    RowVisit visit{};
    visit.k = packed_k(call, first_block), visit.v = packed_v(call, first_block);
    visit.scratch = slot.scratch, visit.spans = slot.spans;
    visit.multiplier = s_.scale.log2, visit.dim = s_.dim, visit.dim_v = s_.dim_v, visit.block = block_;
    const int count = static_cast<int>(task.tile_end - task.tile_begin);
    std::int32_t blocks = 0;
    for (int t = 0; t < count; ++t) {
      TileState& state = slot.states[t];
      if (t + 1 < count) fetch_queries(call, sequence, work.tiles[static_cast<std::size_t>(task.tile_begin + t + 1)]);
      start(call, work, sequence, work.tiles[static_cast<std::size_t>(task.tile_begin + t)], state);
      if (state.run != state.run_end) blocks = std::max(blocks, state.run_end[-1].end);
    }
    for (std::int32_t chunk = 0; chunk < blocks; chunk += chunk_blocks())
      for (int t = 0; t < count; ++t) pass(call, sequence, chunk, std::min(chunk + chunk_blocks(), blocks), slot.states[t], slot, visit);
    bool near = true;
    for (int t = 0; t < count; ++t) near &= finish(call, sequence, slot.states[t]);
    return near;
  }

  /// The rows of the next tile on their way to the cache: hardware does not follow long strides.
  void fetch_queries(const Call& call, const Sequence& sequence, const LaneTile& tile) const {
    for_each_lane(tile, [&](int, std::int32_t head, std::int32_t q) {
      const char* row = static_cast<const char*>(call.q.row(sequence.batch, sequence.q_begin + q, head));
      for (int d = 0; d < s_.dim && call.q.stride == 1; d += 32) __builtin_prefetch(row + 2 * d);
    });
  }

  void start(const Call& call, const Work& work, const Sequence& sequence, const LaneTile& tile, TileState& state) const {
    state.tile = &tile;
    state.run = work.runs.data() + tile.run_begin, state.run_end = work.runs.data() + tile.run_end;
    state.symbols->fill(tile, sequence, s_.problem);
    const void* rows[max_lanes] = {};
    for_each_lane(
        tile, [&](int lane, std::int32_t head, std::int32_t q) { rows[lane] = call.q.row(sequence.batch, sequence.q_begin + q, head); });
    ops_.pack_q({rows, tile.lanes(), call.q.stride, call.q.dtype}, s_.dim, s_.sign, state.q);
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
  void pass(const Call& call, const Sequence& sequence, std::int32_t begin, std::int32_t end, TileState& state, const Slot& slot,
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
  KeyRange block_ranges(const Call& call, const Sequence& sequence, const TileState& state, std::int32_t block, bool full,
                        std::int32_t* first, std::int32_t* last, const Slot& slot) const {
    const KeyRange all{0, s_.block_keys(sequence, block)};
    std::fill_n(first, max_lanes, 0);
    std::fill_n(last, max_lanes, full ? all.end : 0);
    if (full) return all;
    const LaneView view{state.tile->lanes(), state.symbols->head, state.symbols->q_idx};
    s_.tape.lane_ranges(s_.frame(sequence, view, block, all), call.data, first, last, slot.tape_scratch);
    return trim({first, last}, view.count, 1, all);
  }

  bool finish(const Call& call, const Sequence& sequence, const TileState& state) const {
    alignas(64) float sum[max_lanes], factor[max_lanes] = {};
    void* rows[max_lanes] = {};
    bool near = true;
    ops_.add_sums(state.sums, sum);
    for_each_lane(*state.tile, [&](int lane, std::int32_t head, std::int32_t q) {
      const std::int64_t token = sequence.q_begin + q;
      rows[lane] = call.out.row(sequence.batch, token, head);
      const bool empty = sum[lane] == 0;
      near &= state.max[lane] == -std::numeric_limits<float>::max() || !(std::abs(state.max[lane]) > too_far);
      factor[lane] = empty ? 0.0f : 1 / sum[lane];
      if (call.lse.present())
        call.lse.at(sequence.batch, head, token) =
            empty ? -std::numeric_limits<float>::infinity()
                  : static_cast<float>((static_cast<double>(state.max[lane]) + std::log2(static_cast<double>(sum[lane]))) * ln2);
    });
    ops_.write(state.acc, s_.dim_v, factor, {rows, state.tile->lanes(), call.out.stride, call.out.dtype});
    return near;
  }

  const RowOps& ops_;
  int block_;
  Setup<float> s_;
  std::unique_ptr<planning::Executable> otherwise_;
  int tiles_per_task_;
  std::pmr::vector<Task> tasks_;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace

bool row_forward_serves(const problem::Problem& problem, const BlockOps<float>& ops) {
  const Attention& attention = problem.attention;
  if (!ops.rows || problem.dtype != DType::bf16 || attention.checked || attention.dropout_p > 0 || problem.has_score_mod()) return false;
  // Decoding reads keys once: packing would not pay, and pieces of the keys can be shared out.
  const std::int64_t rows =
      problem.group_size * (problem.varlen ? problem.total_q / std::max<std::int64_t>(problem.batch, 1) : problem.seqlen_q);
  const std::int64_t tiles = problem.batch * problem.heads_kv * (rows / ops.rows->rows);
  const std::int64_t seqlen_kv = problem.ragged_kv() ? problem.total_kv / std::max<std::int64_t>(problem.batch, 1) : problem.seqlen_kv;
  return rows >= ops.rows->rows && (tiles >= 8 || seqlen_kv <= 2048);
}

std::unique_ptr<planning::Executable> make_row_forward(const problem::Problem& problem, const Target& target, const BlockOps<float>& ops,
                                                       const PlanOptions& options, std::unique_ptr<planning::Executable> otherwise) {
  return std::make_unique<RowPass>(problem, target, ops, options, std::move(otherwise));
}

}  // namespace foveal::cpu
