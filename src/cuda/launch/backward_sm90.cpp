#include "cuda/launch/backward_sm90.h"

#include "base/check.h"
#include "base/divide.h"
#include "cuda/device/layout/agreed.cuh"
#include "cuda/launch/attention_args.h"
#include "cuda/launch/gradient_pass_sm90.h"
#include "cuda/launch/group_sums.h"
#include "cuda/launch/param_gradients.h"
#include "cuda/launch/pass_sm80.h"
#include "cuda/launch/sm90_args.h"
#include "cuda/launch/tile_tables.h"
#include "cuda/score/score_emit.h"
#include "cuda/tune/read_plan.h"
#include "cuda/tune/sm90_backward_schedule.h"
#include "cuda/tune/tuned.h"

namespace foveal::cuda {
namespace {

Sm90BackwardConfig with_group_tasks(const HopperProblem& problem, Sm90BackwardConfig config, const driver::DeviceFacts& facts) {
  if (config.group_tasks == 0) config.group_tasks = sm90_group_tasks(problem, config, facts);
  return config;
}

int dq_sum_columns(const problem::Problem& p, const Sm90BackwardConfig& config) {
  return device::DqSumShape(static_cast<int>(p.head_dim), config.block_q).columns;
}

/// Offsets of the statistics of query rows and of their dq sums. rows_of_head is a multiple of device::kRowStep.
struct StatisticsLayout {
  std::size_t lse2 = 0, largest = 0, far = 0, delta = 0, dq_sum = 0, dq_semaphore = 0, keys = 0;
  std::int64_t stream_rows = 0;  ///< of one stream of parts (Part::Kept); each stream has lse2, largest and far of its own
  Workspace pieces;

  StatisticsLayout(const problem::Problem& p, const Sm90BackwardConfig& config, std::int64_t rows_of_head)
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
  BackwardSm90(const HopperProblem& problem, const driver::DeviceFacts& facts, const ReadPlan& plan,
               const Chosen<Sm90BackwardConfig>& choice)
      : GpuExecutable(problem.problem.device.index),
        problem_(problem.problem),
        read_plan_(plan),
        choice_(choice),
        config_(with_group_tasks(problem, choice_.config, facts)),
        mask_(problem.mask),
        tables_(problem_, config_.block_q, config_.task_keys(), true, workspace_),
        group_sums_(problem_, config_, workspace_, kernels_),
        gradients_(problem_, read_plan_, workspace_, kernels_),
        reads_(problem_, facts.shared_bytes_per_block, read_plan_, workspace_, kernels_) {
    const problem::Problem& p = problem_;
    const auto add = [&](GradientKernelSm90 kernel) { passes_.emplace_back(problem, std::move(kernel), workspace_, kernels_); };
    if (read_plan_.collect) add(collect_sm90(problem, *read_plan_.collect, facts));
    for (const PlannedRead& read : read_plan_.reads) {
      if (read.collector != Collector::pairs) continue;
      add(pairs_sm90(problem, read, *read_plan_.pairs, facts));
      if (read.facts.covers) gradients_.leave_uncleared(read.facts.param);
    }
    if (read_plan_.rows) add(query_tables_sm90(problem, *read_plan_.rows, facts));
    stat_rows_ =
        p.varlen ? base::round_up(p.total_q, device::kRowStep) + p.batch * device::kRowStep : base::round_up(p.seqlen_q, device::kRowStep);
    if (p.keeps_rows) kept_hash_ = std::hash<std::string>{}(jit::assemble(backward_convert_sm90_source(problem, config_)));
    if (!p.keeps_rows) statistics_offset_ = workspace_.reserve(StatisticsLayout(p, config_, stat_rows_).pieces.bytes());

    schedule_ = sm90_backward_schedule(problem, config_, facts);
    grid_ = static_cast<unsigned>(schedule_.teams * config_.cluster_size());

    shared_bytes_ = static_cast<unsigned>(config_.shared_bytes(p));
    kernel_ = kernels_.add_main(backward_sm90_source(problem, config_), shared_bytes_);
    prepare_ = kernels_.add(backward_prepare_sm90_source(problem, config_));
    if (p.dq.present) convert_ = kernels_.add(backward_convert_sm90_source(problem, config_));
    if (reads_.any()) {
      problem::Problem rows_only = p;
      if (p.sink >= 0) rows_only.params[static_cast<std::size_t>(p.sink)].gradient = {};  // the sink already has the terms of far rows
      measure_.emplace(rows_only, facts.shared_bytes_per_block, kernels_);
    }
    if (uses_tables()) tables_.add_to(kernels_);
  }

  std::size_t workspace_bytes() const override { return workspace_.bytes(); }
  KeptRows kept_rows(std::int64_t rows) const override {
    if (!problem_.keeps_rows) return {};
    return {StatisticsLayout(problem_, config_, base::round_up(rows, device::kRowStep)).pieces.bytes(), kept_hash_};
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
    const jit::Facts& facts = kernel_->image().facts;
    e.details.emplace_back("tiles", base::join(config_.text(), ", from ", to_string(mask_.tiles)));
    e.details.emplace_back("configuration", choice_.why);
    e.details.emplace_back("tasks", schedule_.text(e.schedule.team));
    e.details.emplace_back("spilled bytes", std::to_string(facts.spill_bytes));
    e.details.emplace_back("shared bytes", std::to_string(shared_bytes_));
    read_plan_.describe(e, problem_);
    for (const GradientPassSm90& pass : passes_) pass.describe(e);
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
    set_statistics(args, stages, workspace);
    const auto heads = static_cast<unsigned>(p.heads_q), sequences = static_cast<unsigned>(p.batch);
    const std::int64_t rows_per_cta = device::kPrepareThreads / device::prepare_row_lanes(static_cast<int>(p.head_dim_v));
    const auto prepare_ctas = static_cast<unsigned>(base::round_up(p.seqlen_q, device::kRowStep) / rows_per_cta);
    const auto prepare = [&] {
      prepare_->launch({.grid_x = prepare_ctas, .grid_y = heads, .grid_z = sequences, .threads = device::kPrepareThreads}, args, stream);
    };
    const auto convert = [&] {
      const auto convert_ctas = static_cast<unsigned>(base::divide_up(p.seqlen_q, config_.block_q) * 2 * config_.cluster_size());
      convert_->launch({.grid_x = convert_ctas, .grid_y = heads, .grid_z = sequences, .threads = device::kConvertThreads}, args, stream);
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
    kernel_->launch({.grid_x = grid_, .threads = Sm90BackwardConfig::threads, .shared_bytes = shared_bytes_, .cooperative = reproducible()},
                    args, stream);
    group_sums_.finish(whole, workspace, stream);
    if (stages.ends && p.dq.present) convert();
    if (!gradients_.any()) return;
    for (const GradientPassSm90& pass : passes_) pass.run(buffers, args, workspace, stream);
    finish_params(args.attention, args.stat_rows, buffers, workspace, stream);
  }

 private:
  /// Statistics and dq sums lie in the workspace, or in memory that several parts share, at the rows of this part.
  void set_statistics(device::Sm90Args& args, const Part::Kept& kept, void* workspace) const {
    const bool keeps = problem_.keeps_rows;
    const std::int64_t rows = keeps ? base::round_up(kept.rows, device::kRowStep) : stat_rows_, first = kept.first;
    const StatisticsLayout at(problem_, config_, rows);
    void* memory = keeps ? kept.memory : Workspace::at<void>(workspace, statistics_offset_);
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
  bool uses_tables() const { return mask_.is_list(); }
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
  const ReadPlan read_plan_;
  Chosen<Sm90BackwardConfig> choice_;
  Sm90BackwardConfig config_;
  Sm90Mask mask_;
  Workspace workspace_;
  TileTables tables_;
  GroupSums group_sums_;
  ParamGradients gradients_;
  ReadPasses reads_;
  std::vector<GradientPassSm90> passes_;
  std::optional<MeasureSm80> measure_;  ///< for reads_, whose kernels round scores differently
  std::int64_t stat_rows_ = 0;
  std::size_t statistics_offset_ = 0;  ///< in the workspace, where parts do not keep rows
  std::size_t kept_hash_ = 0;          ///< where they do: parts must share the kernel that converts dq
  Sm90Schedule schedule_{};
  unsigned grid_ = 1, shared_bytes_ = 0;
  jit::KernelHandle kernel_, prepare_, convert_;
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
  const HopperProblem problem(p);
  if (p.attention.determinism == Determinism::reproducible && problem.mask.is_list())
    return Design::refused("tiles of this mask add to dq in any order, which is not reproducible");
  const ReadPlan plan = sm90_read_plan(p);
  const auto choice = sm90_backward_choice(problem, plan, facts.name);
  if (!choice) return Design::refused("no tile fits shared memory");
  if (auto reason = refuses(p, facts, plan, choice->config)) return Design::refused(*std::move(reason));
  return {.make = [p, mask = problem.mask, facts, plan = plan.placed(choice->config.bins), choice = *choice] {
    return std::make_unique<BackwardSm90>(HopperProblem(p, mask), facts, plan, choice);
  }};
}

std::vector<Family> families_backward_sm90(const problem::Problem& p, const driver::DeviceFacts&) {
  Family family{Sm90BackwardConfig::family, {}};
  for (const Sm90BackwardConfig& config : sm90_backward_space(p, sm90_read_plan(p))) family.configs.push_back(text_of(config));
  return {family};
}

/// Is the mask a band? Kernels that seldom evaluate it at single pairs then take its limits from their arguments.
bool mask_is_band(const HopperProblem& problem) { return problem.problem.has_mask() && !problem.mask.is_list(); }

jit::KernelSource source_of(const HopperProblem& problem, const Sm90BackwardConfig& config, const char* kernel, const std::string& score) {
  const problem::Problem& p = problem.problem;
  device::BackwardConfig whole = config;
  whole.splits_groups = config.group_tasks > 1;
  whole.reproducible = p.attention.determinism == Determinism::reproducible;
  whole.tile_source = problem.mask.tiles;
  jit::KernelSource source{.stem = kernel, .constants = attention_constants(p), .score = score};
  source.constants.set_struct("kConfig", "BackwardConfig", "sm90_config.cuh", whole);
  source.constants.set_shared_bytes(config.shared_bytes(p));
  return source;
}

/// Of the kernels before and after it.
device::BackwardRowsConfig rows_config(const HopperProblem& problem, const Sm90BackwardConfig& config) {
  return {.block_q = config.block_q, .mask_is_band = mask_is_band(problem), .keeps_rows = problem.problem.keeps_rows};
}

}  // namespace

const Candidate backward_sm90{.pass = Pass::backward, .design = design_backward_sm90, .families = families_backward_sm90};

jit::KernelSource backward_sm90_source(const HopperProblem& problem, const Sm90BackwardConfig& config) {
  const problem::Problem& p = problem.problem;
  return source_of(problem, config, sm90_backward_variant(p).stem,
                   emit_score(p, {.lines = config.lines,
                                  .pairs = true,
                                  .tiles = config.tiles,
                                  .tables = config.tables,
                                  .tanh = true,
                                  .bins = config.bins,
                                  .reads = config.reads,
                                  .band = !problem.mask.is_list()}));
}
jit::KernelSource backward_prepare_sm90_source(const HopperProblem& problem, const Sm90BackwardConfig& config) {
  const problem::Problem& p = problem.problem;
  jit::KernelSource source{.stem = "backward_prepare_sm90",
                           .constants = attention_constants(p),
                           .score = emit_score(p, {.lines = config.lines, .band = mask_is_band(problem)})};
  device::BackwardRowsConfig rows = rows_config(problem, config);
  rows.reproducible = p.attention.determinism == Determinism::reproducible;
  source.constants.set_struct("kConfig", "BackwardRowsConfig", "sm90_config.cuh", rows);
  return source;
}
// Without a mask this source depends on little of the problem, so most calls share one kernel.
jit::KernelSource backward_convert_sm90_source(const HopperProblem& problem, const Sm90BackwardConfig& config) {
  const problem::Problem& p = problem.problem;
  problem::Problem alike = p;
  alike.whole_keys = false;
  const bool cuts_tiles = p.has_mask() || p.ragged_kv();
  jit::KernelSource source{.stem = "backward_convert_sm90",
                           .constants = attention_constants(alike),
                           .score = slope_has_unit(p) || cuts_tiles ? emit_score(p, {.band = mask_is_band(problem)}) : emit_sink(p, true)};
  source.constants.set_struct("kConfig", "BackwardRowsConfig", "sm90_config.cuh", rows_config(problem, config));
  return source;
}

}  // namespace foveal::cuda
