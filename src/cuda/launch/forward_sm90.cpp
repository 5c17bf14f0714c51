#include "cuda/launch/forward_sm90.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/check.h"
#include "base/divide.h"
#include "base/lru_cache.h"
#include "cuda/launch/attention_args.h"
#include "cuda/launch/sm90_args.h"
#include "cuda/launch/tile_tables.h"
#include "cuda/score/score_emit.h"
#include "cuda/tune/sm90_order.h"
#include "cuda/tune/tuned.h"

namespace foveal::cuda {
namespace {

constexpr int splits_of_warp = 8;  ///< that one warp merges; several warps share a row with more

struct ForwardSources {
  jit::KernelSource forward;
  std::optional<jit::KernelSource> merge{};  ///< of the splits of rows
};

/// The length-independent part of a design, shared while a KV cache grows.
struct SharedDesign {
  device::TileSource tiles;
  std::optional<Chosen<Sm90ForwardConfig>> choice;  ///< none where the kernel for many queries runs, whose choice depends on lengths
  ForwardSources whole{}, split{};                  ///< without and with split-KV
  std::vector<float> numbers{};                     ///< Problem::numbers of these sources
};

ForwardSources sources_of(const HopperProblem& problem, const Sm90ForwardConfig& config) {
  ForwardSources sources{forward_sm90_source(problem, config)};
  if (config.split_kv) sources.merge = merge_splits_sm90_source(problem.problem);
  return sources;
}

/// The problem of a plan with its own copy of a shared design's numbers, to which the plan's other kernels add theirs.
problem::Problem with_numbers_of(const std::shared_ptr<const SharedDesign>& design, problem::Problem problem) {
  if (design) problem.numbers = std::make_shared<std::vector<float>>(design->numbers);
  return problem;
}

/// Do a program's reads stay at the same elements when lengths change? Their indices may then depend on batch and head only.
bool reads_follow_heads(const scoring::Program& program) {
  constexpr std::uint8_t places = scoring::depends_q | scoring::depends_kv | scoring::depends_score;
  for (const scoring::Instr& instr : program.code)
    for (const scoring::ValueId index : instr.index)
      if (program.depends_of(index) & places) return false;
  return true;
}

/// The problem with the number of keys rounded up to a power of two; its kernels also serve all shorter ones. If the queries follow the
/// keys of a cache, their offset grows by as much.
problem::Problem any_length(const problem::Problem& p) {
  problem::Problem any = p;
  any.any_length = true;
  any.numbers = std::make_shared<std::vector<float>>();
  any.seqlen_kv = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(p.seqlen_kv)));
  if (p.attention.q_offset > 0) any.attention.q_offset += any.seqlen_kv - p.seqlen_kv;
  any.total_kv = any.batch * any.seqlen_kv;
  for (problem::TensorSpec* keys : {&any.k, &any.v}) keys->sizes[1] = any.seqlen_kv, keys->strides = {};
  return any;
}

SharedDesign design_of(const HopperProblem& any, const std::string& device) {
  SharedDesign design{.tiles = any.mask.tiles, .choice = sm90_forward_choice(any, device)};
  if (design.choice && !design.choice->config.is_decode()) design.choice.reset();
  if (!design.choice) return design;
  Sm90ForwardConfig config = design.choice->config;
  design.whole = sources_of(any, config);
  config.split_kv = true;
  design.split = sources_of(any, config);
  design.numbers = *any.problem.numbers;
  return design;
}

/// The design that a problem shares with problems of other lengths, or null if its kernels may depend on lengths.
std::shared_ptr<const SharedDesign> shared_design(const HopperProblem& problem, const std::string& device) {
  const problem::Problem& p = problem.problem;
  constexpr std::int64_t most_queries = 128;
  if (p.seqlen_q >= most_queries || p.ragged_kv() || p.part || !reads_follow_heads(p.score->forward) || !reads_follow_heads(p.score->mask))
    return nullptr;
  const auto tuned = tuned_config(p, device, Sm90ForwardConfig::family);
  static base::LruCache<SharedDesign> designs(64);
  const problem::Problem any = any_length(p);
  const std::string key = base::join(device, " | ", tuned ? tuned->config : "", " | ", problem::key_of(any), " | ", any.score->text);
  auto design = designs.find_or_make(key, [&] { return design_of(any, device); });
  return design->choice && design->tiles == problem.mask.tiles ? design : nullptr;
}

/// In packed batches only the device knows where sequences end: tasks that stop early even out over the rounds of a persistent grid.
const Sm90ScheduleCosts& schedule_costs_of(const problem::Problem& p, const Sm90ForwardConfig& config) {
  if (p.varlen) return schedule_costs::forward;
  if (config.query_stages == 1) return schedule_costs::forward_one_buffer;
  return std::max(p.head_dim, p.head_dim_v) > 64 ? schedule_costs::forward_128 : schedule_costs::forward;
}

class ForwardSm90 : public GpuExecutable {
 public:
  ForwardSm90(const HopperProblem& problem, const driver::DeviceFacts& facts, const std::shared_ptr<const SharedDesign>& shared,
              const Chosen<Sm90ForwardConfig>& choice)
      : GpuExecutable(problem.problem.device.index),
        problem_(problem.problem),
        choice_(choice),
        config_(choice_.config),
        mask_(problem.mask),
        tables_(problem_, config_.queries(), config_.block_kv, false, workspace_) {
    const problem::Problem& p = problem_;
    kv_splits_ = sm90_kv_splits(problem, config_, facts.multiprocessors);
    config_.split_kv = kv_splits_.value > 1;
    if (config_.split_kv) {
      split_rows_ = (p.varlen ? p.total_q : p.batch * p.seqlen_q) * p.heads_q;
      const auto rows = static_cast<std::size_t>(kv_splits_.value * split_rows_);
      split_out_offset_ = workspace_.reserve(rows * static_cast<std::size_t>(p.head_dim_v) * sizeof(float));
      split_softmax_offset_ = workspace_.reserve(rows * sizeof(device::SplitRow));
      split_exponent_offset_ = workspace_.reserve(sizeof(float));
    }
    std::vector<double> row_cost;
    for (const double cost : sm90_row_cost(mask_, p.seqlen_q, config_.queries(), p.seqlen_kv, config_.block_kv, Sm90Walk::keys))
      row_cost.insert(row_cost.end(), static_cast<std::size_t>(kv_splits_.value), cost / kv_splits_.value);
    schedule_ = sm90_schedule({.row_cost = std::move(row_cost),
                               .heads = p.heads_q / config_.packed_heads,
                               .batch = p.batch,
                               .head_bytes = p.seqlen_kv * (p.head_dim + p.head_dim_v) * 2 * config_.packed_heads / p.group_size,
                               .sequences_inside = sequences_share_pairs(p)},
                              schedule_costs_of(p, config_), {facts.multiprocessors, facts.l2_bytes});

    shared_bytes_ = static_cast<unsigned>(config_.shared_bytes(p));
    ForwardSources sources = !shared ? sources_of(problem, config_) : config_.split_kv ? shared->split : shared->whole;
    kernel_ = kernels_.add_main(std::move(sources.forward), shared_bytes_);
    if (config_.split_kv) merge_ = kernels_.add(*std::move(sources.merge));
    if (uses_tables()) tables_.add_to(kernels_);
  }

  std::size_t workspace_bytes() const override { return workspace_.bytes(); }
  std::string kernel() const override {
    return base::join("cuda.sm90.", to_string(problem_.dtype), config_.is_decode() ? ".decode" : ".forward",
                      config_.packed_heads > 1 ? ".packed" : "", config_.split_kv ? ".split" : "", problem_.paged ? ".paged" : "",
                      problem_.spread ? ".spread" : "");
  }

  void describe(Explanation& e) const override {
    e.kernel = kernel();
    tables_.describe_work(e, problem_);
    e.schedule = sm90_tile_schedule(schedule_, problem_.seqlen_q, config_.queries(), config_.packed_heads, kv_splits_.value);
    e.schedule.block_q = config_.queries(), e.schedule.block_kv = config_.block_kv, e.schedule.team = "CTA";
    e.flops = static_cast<double>(e.tiles_full + e.tiles_partial) * config_.queries() * config_.block_kv * 2.0 *
              static_cast<double>(problem_.head_dim + problem_.head_dim_v);
    const jit::Facts& facts = kernel_->image().facts;
    e.details.emplace_back("tiles", base::join(config_.text(), ", from ", to_string(mask_.tiles)));
    e.details.emplace_back("configuration", choice_.why);
    e.details.emplace_back("tasks", schedule_.text());
    if (config_.split_kv) e.details.emplace_back("split-KV", std::to_string(kv_splits_.value));
    e.details.emplace_back("spilled bytes", std::to_string(facts.spill_bytes));
    e.details.emplace_back("shared bytes", std::to_string(shared_bytes_));
    if (uses_tables() && tables_.needs_data()) e.details.emplace_back("tile table", "made on the device in each run: the mask reads data");
  }

  void run(const problem::Buffers& buffers, void* workspace, Stream stream) const override {
    const problem::Problem& p = problem_;
    const driver::Current current(device_);
    device::Sm90Args args = sm90_args(p, buffers, mask_);
    const std::int64_t keys = sm90_keys_in_reach(p, mask_);
    args.q = config_.packed_heads > 1 ? sm90_packed_tensor_map(buffers.q, config_.queries(), config_.packed_heads)
                                      : sm90_tensor_map(buffers.q, config_.block_q(), p.total_q);
    const L2Fetch fetch = config_.is_decode() ? L2Fetch::bytes_128 : L2Fetch::bytes_256;
    args.k = sm90_tensor_map(buffers.k, box_keys(), keys, fetch);
    args.v = sm90_tensor_map(buffers.v, box_keys(), keys, fetch);
    if (p.paged) args.pages = block_table(buffers);
    sm90_set_pair_maps(args, config_.tiles, buffers, config_.queries());
    args.order = schedule_.order;
    if (uses_tables()) {
      args.attention.tiles_q = static_cast<int>((p.seqlen_q + config_.queries() - 1) / config_.queries());
      args.attention.tiles_kv = static_cast<int>(base::divide_up(p.seqlen_kv, config_.block_kv));
      args.attention.runs = tables_.runs(workspace);
      tables_.make(args.attention, workspace, stream);
    }
    if (config_.split_kv) {
      args.parts.kv_splits = kv_splits_;
      args.split_out = Workspace::at<float>(workspace, split_out_offset_);
      args.split_softmax = Workspace::at<device::SplitRow>(workspace, split_softmax_offset_);
      args.split_exponent = Workspace::at<float>(workspace, split_exponent_offset_);
      args.split_rows = split_rows_;
      args.merge_warps = merge_warps();
    }
    const jit::LaunchShape shape{.grid_x = static_cast<unsigned>(schedule_.teams),
                                 .threads = static_cast<unsigned>(config_.threads()),
                                 .shared_bytes = shared_bytes_,
                                 .programmatic = config_.is_decode()};
    if (p.spread) {
      kernel_->launch(shape, sm90_spread_args(args, buffers, keys, box_keys(), config_.block_kv), stream);
    } else {
      kernel_->launch(shape, args, stream);
    }
    if (!config_.split_kv) return;
    const std::int64_t warps = p.seqlen_q * p.heads_q * merge_warps();
    merge_->launch({.grid_x = static_cast<unsigned>((warps + device::kMergeWarps - 1) / device::kMergeWarps),
                    .grid_y = static_cast<unsigned>(p.batch),
                    .threads = 32 * device::kMergeWarps,
                    .programmatic = true},
                   args, stream);
  }

 private:
  bool uses_tables() const { return mask_.is_list(); }
  int merge_warps() const {
    const int wanted = std::clamp(kv_splits_.value / splits_of_warp, 1, device::kMergeWarps);
    return static_cast<int>(std::bit_floor(static_cast<unsigned>(wanted)));
  }
  /// Keys that one TMA load brings (device::kBoxRows).
  int box_keys() const {
    const std::int64_t together = problem_.spread ? Part::key_range_unit : problem_.paged ? problem_.page_size() : config_.block_kv;
    return static_cast<int>(std::gcd(together, std::int64_t{config_.block_kv}));
  }

  problem::Problem problem_;
  Chosen<Sm90ForwardConfig> choice_;
  Sm90ForwardConfig config_;
  Sm90Mask mask_;
  Workspace workspace_;
  TileTables tables_;
  Sm90Schedule schedule_{};
  device::Divisor kv_splits_{};
  std::int64_t split_rows_ = 0;
  std::size_t split_out_offset_ = 0, split_softmax_offset_ = 0, split_exponent_offset_ = 0;
  unsigned shared_bytes_ = 0;
  jit::KernelHandle kernel_, merge_;
};

std::optional<std::string> refuses_forward_sm90(const problem::Problem& p) {
  if (auto reason = refuses_sm90(p)) return reason;
  if (p.head_dim > sm90_max_head_dim) return base::join("head_dim ", p.head_dim, " exceeds ", sm90_max_head_dim);
  if (p.head_dim_v > sm90_max_head_dim) return base::join("head_dim_v ", p.head_dim_v, " exceeds ", sm90_max_head_dim);
  return std::nullopt;
}

Design design_forward_sm90(const problem::Problem& p, const driver::DeviceFacts& facts) {
  if (auto reason = refuses_forward_sm90(p)) return Design::refused(*std::move(reason));
  const HopperProblem problem(p);
  const auto shared = shared_design(problem, facts.name);
  const auto choice = shared ? shared->choice : sm90_forward_choice(problem, facts.name);
  if (!choice) return Design::refused("no tile fits shared memory");
  const std::size_t needed = choice->config.shared_bytes(p);
  if (needed > facts.shared_bytes_per_block)
    return Design::refused(base::join(needed, " bytes of shared memory exceed ", facts.shared_bytes_per_block));
  if (auto reason = TileTables::refuses(p, choice->config.queries(), choice->config.block_kv)) return Design::refused(*std::move(reason));
  return {.make = [p = with_numbers_of(shared, p), mask = problem.mask, facts, shared, choice = *choice] {
    return std::make_unique<ForwardSm90>(HopperProblem(p, mask), facts, shared, choice);
  }};
}

std::vector<Family> families_forward_sm90(const problem::Problem& p, const driver::DeviceFacts&) {
  Family family{Sm90ForwardConfig::family, {}};
  for (const Sm90ForwardConfig& config : sm90_forward_space(p)) family.configs.push_back(text_of(config));
  return {family};
}

}  // namespace

const Candidate forward_sm90{
    .pass = Pass::forward, .design = design_forward_sm90, .families = families_forward_sm90, .reads_pages = true, .reads_bytes = true};

jit::KernelSource forward_sm90_source(const HopperProblem& problem, const Sm90ForwardConfig& config) {
  jit::KernelSource source{.stem = config.kernel(),
                           .constants = attention_constants(problem.problem),
                           .score = emit_score(problem.problem, {.lines = config.lines,
                                                                 .row_values = config.row_values,
                                                                 .pairs = config.consumers == 2 && config.packed_heads == 1,
                                                                 .tiles = config.tiles,
                                                                 .tables = config.tables,
                                                                 .tanh = true,
                                                                 .band = !problem.mask.is_list(),
                                                                 .raw_offsets = config.raw_offsets,
                                                                 .offsets_first = config.offsets_first,
                                                                 .offset_columns = config.offset_steps > 0,
                                                                 .several_heads = config.packed_heads > 1})};
  source.constants.set_struct("kConfig", "ForwardConfig", "sm90_config.cuh", config);
  source.constants.set_shared_bytes(config.shared_bytes(problem.problem));
  return source;
}

jit::KernelSource merge_splits_sm90_source(const problem::Problem& problem) {
  return {.stem = "merge_splits_sm90", .constants = attention_constants(problem), .score = emit_sink(problem, false)};
}

}  // namespace foveal::cuda
