#include "cuda/launch/backward_sm90.h"

#include <algorithm>

#include "base/check.h"
#include "base/divide.h"
#include "cuda/device/layout/agreed.cuh"
#include "cuda/launch/attention_args.h"
#include "cuda/launch/collect_sm90.h"
#include "cuda/launch/group_sums.h"
#include "cuda/launch/pairs_sm90.h"
#include "cuda/launch/param_gradients.h"
#include "cuda/launch/pass_sm80.h"
#include "cuda/launch/rows_sm90.h"
#include "cuda/launch/sm90_args.h"
#include "cuda/launch/tile_tables.h"
#include "cuda/score/score_emit.h"
#include "cuda/tune/read_plan.h"
#include "cuda/tune/sm90_backward_schedule.h"
#include "cuda/tune/tuned.h"

namespace foveal::cuda {
namespace {

Sm90BackwardConfig with_group_tasks(const problem::Problem& p, Sm90BackwardConfig config, const driver::DeviceFacts& facts) {
  if (config.group_tasks == 0) config.group_tasks = sm90_group_tasks(p, config, facts);
  return config;
}

int dq_sum_columns(const problem::Problem& p, const Sm90BackwardConfig& config) {
  return device::DqSumShape(static_cast<int>(p.head_dim), config.block_q).columns;
}

/// Offsets of the statistics of rows and their dq sums; rows_of_head is a multiple of device::kRowStep.
struct RowsLayout {
  std::size_t lse2 = 0, largest = 0, far = 0, delta = 0, dq_sum = 0, dq_semaphore = 0, keys = 0;
  std::int64_t stream_rows = 0;  ///< rows of statistics of a stream (Part::Kept): of lse2, largest and far there is one for each
  Workspace pieces;

  RowsLayout(const problem::Problem& p, const Sm90BackwardConfig& config, std::int64_t rows_of_head)
      : stream_rows(rows_of_head * p.heads_q * (p.varlen ? 1 : p.batch)) {
    const auto rows = static_cast<std::size_t>(stream_rows), of_streams = (p.keeps_rows ? 2 : 1) * rows;
    lse2 = pieces.reserve(of_streams * sizeof(float));
    largest = pieces.reserve(of_streams * sizeof(float));
    far = pieces.reserve(of_streams / 8 * sizeof(unsigned short));
    delta = pieces.reserve(rows * sizeof(float));
    dq_sum = pieces.reserve(rows * static_cast<std::size_t>(dq_sum_columns(p, config)) * sizeof(float));
    if (p.attention.determinism == Determinism::reproducible)
      dq_semaphore = pieces.reserve(rows * static_cast<std::size_t>(config.cluster_size()) / static_cast<std::size_t>(config.block_q) *
                                    sizeof(unsigned));
    if (p.keeps_rows) keys = pieces.reserve(Part::most_kept * sizeof(device::KeptKeys));
  }
};

class BackwardSm90 : public GpuExecutable {
 public:
  BackwardSm90(const problem::Problem& problem, const driver::DeviceFacts& facts, const ReadPlan& plan,
               const Chosen<Sm90BackwardConfig>& choice)
      : problem_(problem),
        device_(problem.device.index),
        read_plan_(plan),
        choice_(choice),
        config_(with_group_tasks(problem, choice_.config, facts)),
        mask_(sm90_mask(problem)),
        tables_(problem, config_.block_q, config_.task_keys(), true, workspace_),
        group_sums_(problem, config_, workspace_),
        gradients_(problem, read_plan_, workspace_),
        reads_(problem, facts.shared_bytes_per_block, read_plan_, workspace_) {
    if (!read_plan_.collect) read_plan_.place(config_.bins);
    for (const PlannedRead& read : read_plan_.reads) {
      if (read.collector != Collector::pairs) continue;
      pairs_.emplace_back(problem_, read, *read_plan_.pairs, facts, workspace_);
      if (pairs_.back().covers()) gradients_.leave_uncleared(pairs_.back().param());
    }
    if (read_plan_.collect) collect_.emplace(problem_, *read_plan_.collect, facts);
    if (read_plan_.rows) rows_.emplace(problem_, *read_plan_.rows, facts, workspace_);
    const problem::Problem& p = problem_;
    stat_rows_ =
        p.varlen ? base::round_up(p.total_q, device::kRowStep) + p.batch * device::kRowStep : base::round_up(p.seqlen_q, device::kRowStep);
    if (p.keeps_rows) kept_hash_ = std::hash<std::string>{}(jit::assemble(backward_convert_sm90_source(p, config_)));
    if (!p.keeps_rows) rows_offset_ = workspace_.reserve(RowsLayout(p, config_, stat_rows_).pieces.bytes());

    schedule_ = sm90_backward_schedule(p, config_, facts);
    grid_ = static_cast<unsigned>(schedule_.teams * config_.cluster_size());

    shared_bytes_ = static_cast<unsigned>(config_.shared_bytes(p));
    sources_ = {backward_sm90_source(p, config_), backward_prepare_sm90_source(p, config_)};
    const auto add = [&](const std::vector<jit::KernelSource>& more) { sources_.insert(sources_.end(), more.begin(), more.end()); };
    if (p.dq.present) sources_.push_back(backward_convert_sm90_source(p, config_));
    add(group_sums_.sources());
    add(gradients_.sources());
    if (collect_) sources_.push_back(collect_->source());
    if (reads_.any()) {
      problem::Problem rows_only = p;
      if (p.sink >= 0) rows_only.params[static_cast<std::size_t>(p.sink)].gradient = {};  // far rows gave it theirs
      measure_.emplace(rows_only, facts.shared_bytes_per_block);
      sources_.push_back(measure_->source());
    }
    add(reads_.sources());
    for (const PairsSm90& pairs : pairs_) add(pairs.sources());
    if (rows_) add(rows_->sources());
    if (uses_tables()) add(tables_.sources());
  }

  void load(const std::vector<std::shared_ptr<const jit::Image>>& images) override {
    const auto* next = images.data();
    kernel_ = jit::Kernel(*next++, device_, shared_bytes_);
    prepare_ = jit::Kernel(*next++, device_, 0);
    if (problem_.dq.present) convert_ = jit::Kernel(*next++, device_, 0);
    group_sums_.load(next, device_);
    next += group_sums_.sources().size();
    gradients_.load(next, device_);
    next += gradients_.sources().size();
    if (collect_) collect_->load(*next++, device_);
    if (measure_) measure_->load(*next++, device_);
    reads_.load(next, device_);
    next += reads_.sources().size();
    for (PairsSm90& pairs : pairs_) {
      pairs.load(next, device_);
      next += pairs.sources().size();
    }
    if (rows_) {
      rows_->load(next, device_);
      next += rows_->sources().size();
    }
    if (!uses_tables()) return;
    tables_.load(next, device_);
    tables_.upload(device_);
  }

  std::size_t workspace_bytes() const override { return workspace_.bytes(); }
  KeptRows kept_rows(std::int64_t rows) const override {
    if (!problem_.keeps_rows) return {};
    return {RowsLayout(problem_, config_, base::round_up(rows, device::kRowStep)).pieces.bytes(), kept_hash_};
  }
  std::string kernel() const override {
    return base::join("cuda.sm90.", to_string(problem_.dtype), ".backward.fused", reproducible() ? ".reproducible" : "");
  }

  void describe(Explanation& e) const override {
    e.kernel = kernel();
    e.strategy = "fused";
    e.reduction = gradients_.text();
    e.deterministic = reproducible();  // the order in which tiles add to dq
    tables_.describe_work(e, problem_);
    e.schedule = sm90_tile_schedule(schedule_, problem_.seqlen_kv, config_.task_keys(), task_heads(), 1);
    e.schedule.block_q = config_.block_q, e.schedule.block_kv = config_.task_keys(), e.schedule.rows_are_keys = true;
    e.schedule.team = config_.cluster_size() > 1 ? "cluster" : "CTA";
    e.flops = static_cast<double>(e.tiles_full + e.tiles_partial) * config_.block_q * config_.task_keys() * 2.0 *
              static_cast<double>(3 * problem_.head_dim + 2 * problem_.head_dim_v);
    const jit::Facts& facts = kernel_.image().facts;
    e.details.emplace_back("tiles", base::join(config_.text(), ", from ", to_string(mask_.tiles)));
    e.details.emplace_back("configuration", choice_.why);
    e.details.emplace_back("tasks", schedule_.text(e.schedule.team));
    e.details.emplace_back("spilled bytes", std::to_string(facts.spill_bytes));
    e.details.emplace_back("shared bytes", std::to_string(shared_bytes_));
    read_plan_.describe(e, problem_);
    if (collect_) collect_->describe(e);
    for (const PairsSm90& pairs : pairs_) pairs.describe(e);
    if (rows_) rows_->describe(e);
    if (uses_tables() && tables_.needs_data()) e.details.emplace_back("tile table", "made on the device in each run: the mask reads data");
  }

  void run(const problem::Buffers& buffers, void* workspace, Stream stream) const override {
    const problem::Problem& p = problem_;
    const driver::Current current(device_);
    device::Sm90Args args = sm90_args(p, buffers, mask_);
    sm90_set_backward_maps(args, buffers, config_.block_q, p.total_q, config_.block_kv, sm90_keys_in_reach(p, mask_));
    sm90_set_pair_maps(args, config_.tiles, buffers, config_.block_q);
    args.order = schedule_.order, args.parts.group_tasks = divisor(config_.group_tasks);
    const Part::Kept stages = p.keeps_rows ? buffers.part.kept : Part::Kept{};
    set_rows(args, stages, workspace);
    const auto heads = static_cast<unsigned>(p.heads_q), sequences = static_cast<unsigned>(p.batch);
    const std::int64_t rows_per_cta = device::kPrepareThreads / device::prepare_row_lanes(static_cast<int>(p.head_dim_v));
    const auto prepare_ctas = static_cast<unsigned>(base::round_up(p.seqlen_q, device::kRowStep) / rows_per_cta);
    const auto prepare = [&] {
      prepare_.launch({.grid_x = prepare_ctas, .grid_y = heads, .grid_z = sequences, .threads = device::kPrepareThreads}, args, stream);
    };
    const auto convert = [&] {
      const auto convert_ctas = static_cast<unsigned>(base::divide_up(p.seqlen_q, config_.block_q) * 2 * config_.cluster_size());
      convert_.launch({.grid_x = convert_ctas, .grid_y = heads, .grid_z = sequences, .threads = device::kConvertThreads}, args, stream);
    };
    const bool prepares = stages.begins || stages.measures;
    if (!stages.multiplies) {
      if (prepares) prepare();
      if (stages.ends && p.dq.present) convert();
      return;
    }
    if (uses_tables()) tables_.place(args.attention, workspace, stream);
    gradients_.prepare(args.attention, buffers, workspace, stream);
    if (prepares) prepare();
    const device::AttentionArgs whole = args.attention;
    group_sums_.begin(args.attention, workspace, stream);
    kernel_.launch({.grid_x = grid_, .threads = Sm90BackwardConfig::threads, .shared_bytes = shared_bytes_, .cooperative = reproducible()},
                   args, stream);
    group_sums_.finish(whole, workspace, stream);
    if (stages.ends && p.dq.present) convert();
    if (!gradients_.any()) return;
    if (collect_) collect_->run(buffers, args, stream);
    for (const PairsSm90& pairs : pairs_) pairs.run(buffers, args, workspace, stream);
    if (rows_) rows_->run(buffers, args, workspace, stream);
    finish_params(args.attention, args.stat_rows, buffers, workspace, stream);
  }

 private:
  /// Statistics and dq sums lie in the workspace, or in memory that several parts share, at the rows of this part.
  void set_rows(device::Sm90Args& args, const Part::Kept& kept, void* workspace) const {
    const bool keeps = problem_.keeps_rows;
    const std::int64_t rows = keeps ? base::round_up(kept.rows, device::kRowStep) : stat_rows_, first = kept.first;
    const RowsLayout at(problem_, config_, rows);
    void* memory = keeps ? kept.memory : Workspace::at<void>(workspace, rows_offset_);
    args.stat_rows = static_cast<int>(rows);
    const std::int64_t first_stat = kept.stream * at.stream_rows + first;
    args.attention.lse2.data = Workspace::at<float>(memory, at.lse2) + first_stat;
    args.attention.largest.data = Workspace::at<float>(memory, at.largest) + first_stat;
    args.far = Workspace::at<unsigned short>(memory, at.far) + first_stat / 8;
    args.attention.delta.data = Workspace::at<float>(memory, at.delta) + first;
    args.dq_sum = Workspace::at<float>(memory, at.dq_sum) + first * dq_sum_columns(problem_, config_);
    args.dq_semaphore = Workspace::at<unsigned>(memory, at.dq_semaphore) + first / config_.block_q * config_.cluster_size();
    if (!keeps) return;
    args.kept = {.keys = Workspace::at<device::KeptKeys>(memory, at.keys),
                 .number = static_cast<int>(kept.number),
                 .count = static_cast<int>(kept.count),
                 .first_row = static_cast<int>(first),
                 .begins = kept.begins,
                 .measures = kept.measures,
                 .other_stream = static_cast<int>((kept.stream == 0 ? at.stream_rows : -at.stream_rows) / device::kRowStep)};
  }
  std::int64_t task_heads() const { return problem_.group_size / config_.group_tasks; }
  bool uses_tables() const { return mask_.tiles == Sm90Tiles::list; }
  bool reproducible() const { return problem_.attention.determinism == Determinism::reproducible; }

  /// Gradients of parameters that need portable passes, with the same statistics; then conversion to the caller's tensors.
  void finish_params(device::AttentionArgs args, long long rows, const problem::Buffers& buffers, void* workspace, Stream stream) const {
    args.lse2 = {args.lse2.data, rows * problem_.heads_q, rows, 1};
    args.largest = {args.largest.data, rows * problem_.heads_q, rows, 1};
    args.delta = {args.delta.data, rows * problem_.heads_q, rows, 1};
    if (measure_) measure_->run(problem_, args, stream);
    reads_.run(problem_, args, workspace, stream);
    gradients_.finish(args, buffers, stream);
  }

  problem::Problem problem_;
  int device_;
  ReadPlan read_plan_;
  Chosen<Sm90BackwardConfig> choice_;
  Sm90BackwardConfig config_;
  Sm90Mask mask_;
  Workspace workspace_;
  TileTables tables_;
  GroupSums group_sums_;
  ParamGradients gradients_;
  ReadPasses reads_;
  std::optional<CollectSm90> collect_;
  std::optional<MeasureSm80> measure_;  ///< for reads_, whose kernels round scores differently
  std::vector<PairsSm90> pairs_;
  std::optional<RowsSm90> rows_;
  std::int64_t stat_rows_ = 0;
  std::size_t rows_offset_ = 0;  ///< of what RowsLayout says, where rows are not kept
  std::size_t kept_hash_ = 0;    ///< where they are: parts must share the kernel that converts dq
  Sm90Schedule schedule_{};
  unsigned grid_ = 1, shared_bytes_ = 0;
  jit::Kernel kernel_, prepare_, convert_;
};

std::optional<std::string> refuses_backward_sm90(const problem::Problem& p) {
  if (auto reason = refuses_sm90(p)) return reason;
  if (p.head_dim > sm90_max_head_dim) return base::join("head_dim ", p.head_dim, " exceeds ", sm90_max_head_dim);
  const std::int64_t most = sm90_backward_variant(p).max_head_dim_v;
  if (p.head_dim_v > most) return base::join("head_dim_v ", p.head_dim_v, " exceeds ", most);
  if (p.heads_q > 65535 || p.batch > 65535) return "more than 65535 heads or sequences";
  const BackwardStrategy strategy = p.attention.backward;
  if (strategy != BackwardStrategy::automatic && strategy != BackwardStrategy::fused)
    return base::join("has no ", to_string(strategy), " backward");
  if (p.attention.determinism == Determinism::reproducible && sm90_mask(p).tiles == Sm90Tiles::list)
    return "tiles of this mask add to dq in any order, which is not reproducible";
  return std::nullopt;
}

std::optional<std::string> refuses(const problem::Problem& p, const driver::DeviceFacts& facts, const ReadPlan& plan,
                                   const Sm90BackwardConfig& config) {
  if (p.ragged_kv()) {
    for (const Collector collector : {Collector::pairs, Collector::any_pairs, Collector::walk})
      if (!plan.of(collector).empty()) return "this gradient of a parameter is not collected from sequences of their own lengths";
  }
  if (p.keeps_rows && !(plan.of(Collector::any_pairs).empty() && plan.of(Collector::walk).empty()))
    return "a gradient of a parameter is collected by a pass that measures far rows in its own way, which other parts would take for "
           "theirs";
  const std::size_t needed = config.shared_bytes(p);
  if (needed > facts.shared_bytes_per_block) return base::join(needed, " bytes of shared memory exceed ", facts.shared_bytes_per_block);
  if (auto reason = TileTables::refuses(p, config.block_q, config.task_keys())) return reason;
  if (plan.pairs)
    if (auto reason = TileTables::refuses(p, plan.pairs->block_q, plan.pairs->block_kv)) return reason;
  if (plan.rows)
    if (auto reason = TileTables::refuses(p, plan.rows->block_q(), plan.rows->block_kv)) return reason;
  return ReadPasses::refuses(p, facts.shared_bytes_per_block, plan);
}

Design design_backward_sm90(const problem::Problem& p, const driver::DeviceFacts& facts) {
  if (auto reason = refuses_backward_sm90(p)) return Design::refused(*std::move(reason));
  const ReadPlan plan = sm90_read_plan(p);
  const auto choice = sm90_backward_choice(p, plan, facts.name);
  if (!choice) return Design::refused("no tile fits shared memory");
  if (auto reason = refuses(p, facts, plan, choice->config)) return Design::refused(*std::move(reason));
  return {.make = [p, facts, plan, choice = *choice] { return std::make_unique<BackwardSm90>(p, facts, plan, choice); }};
}

std::vector<Family> families_backward_sm90(const problem::Problem& p, const driver::DeviceFacts&) {
  Family family{Sm90BackwardConfig::family, {}};
  for (const Sm90BackwardConfig& config : sm90_backward_space(p, sm90_read_plan(p))) family.configs.push_back(text_of(config));
  return {family};
}

/// Then kernels that rarely evaluate the mask at single pairs take the band from their arguments.
bool mask_is_band(const problem::Problem& p) { return p.has_mask() && sm90_mask(p).tiles != Sm90Tiles::list; }

jit::KernelSource source_of(const problem::Problem& p, const Sm90BackwardConfig& config, const char* kernel, const std::string& score) {
  jit::KernelSource source{.stem = kernel, .entry = kernel, .constants = sm90_constants(p), .score = score, .arch = {}};
  config.set(source.constants);
  source.constants.set("kSharedBytes", static_cast<int>(config.shared_bytes(p)));
  source.constants.set("kReproducible", p.attention.determinism == Determinism::reproducible).set("kCollects", config.collects);
  source.constants.set("kCollectsTerms", config.collects && config.cluster_size() == 1);
  return source;
}

}  // namespace

const Candidate backward_sm90{.pass = Pass::backward, .design = design_backward_sm90, .families = families_backward_sm90};

jit::KernelSource backward_sm90_source(const problem::Problem& p, const Sm90BackwardConfig& config) {
  return source_of(p, config, sm90_backward_variant(p).kernel,
                   emit_score(p, {.lines = config.lines,
                                  .pairs = true,
                                  .tiles = config.tiles,
                                  .tables = config.tables,
                                  .tanh = true,
                                  .bins = config.bins,
                                  .reads = config.reads,
                                  .band = sm90_mask(p).tiles != Sm90Tiles::list}));
}
jit::KernelSource backward_prepare_sm90_source(const problem::Problem& p, const Sm90BackwardConfig& config) {
  jit::KernelSource source{.stem = "backward_prepare_sm90",
                           .entry = "backward_prepare_sm90",
                           .constants = attention_constants(p),
                           .score = emit_score(p, {.lines = config.lines, .band = mask_is_band(p)}),
                           .arch = {}};
  source.constants.set("kBlockQ", config.block_q).set("kReproducible", p.attention.determinism == Determinism::reproducible);
  source.constants.set("kMaskIsBand", mask_is_band(p)).set("kKeepsRows", p.keeps_rows);
  return source;
}
// Without a mask it depends on little of the problem, so that most calls share it.
jit::KernelSource backward_convert_sm90_source(const problem::Problem& p, const Sm90BackwardConfig& config) {
  problem::Problem alike = p;
  alike.whole_keys = false;
  const bool cuts_tiles = p.has_mask() || p.ragged_kv();
  jit::KernelSource source{.stem = "backward_convert_sm90",
                           .entry = "backward_convert_sm90",
                           .constants = attention_constants(alike),
                           .score = slope_has_unit(p) || cuts_tiles ? emit_score(p, {.band = mask_is_band(p)}) : emit_sink(p, true),
                           .arch = {}};
  source.constants.set("kBlockQ", config.block_q).set("kMaskIsBand", mask_is_band(p)).set("kKeepsRows", p.keeps_rows);
  return source;
}

}  // namespace foveal::cuda
