#include "cuda/launch/backward_sm80.h"

#include <algorithm>

#include "base/check.h"
#include "base/divide.h"
#include "cuda/launch/attention_args.h"
#include "cuda/launch/forward_sm80.h"
#include "cuda/launch/param_gradients.h"
#include "cuda/launch/pass_sm80.h"
#include "cuda/score/score_emit.h"
#include "cuda/tune/tuned.h"

namespace foveal::cuda {
namespace {

constexpr device::PortableConfig delta_config{.block_q = 64, .warps = 8};

jit::KernelSource source_of(const problem::Problem& p, const char* kernel) {
  jit::KernelSource source{.stem = kernel, .constants = attention_constants(p), .score = emit_score(p)};
  const device::WantedGradients wanted{.dq = p.dq.present, .dk = p.dk.present, .dv = p.dv.present};
  source.constants.set_struct("kWanted", "WantedGradients", "sm80_config.cuh", wanted);
  return source;
}

/// The launches of a problem.
struct Launches {
  bool two_scan;  ///< one launch for dq and for dk and dv
  Chosen<Sm80Config> queries;
  std::optional<Chosen<Sm80Config>> keys;  ///< none: dk and dv are not asked for
  ReadPlan reads;

  bool wants_queries(const problem::Problem& p) const { return p.dq.present || !reads.of(Collector::beside_dq).empty(); }
};

/// Nothing where a tile does not fit into shared memory.
std::optional<Launches> launches_of(const problem::Problem& p, const Sm80Device& device) {
  const bool wants_keys = p.dk.present || p.dv.present;
  if (p.attention.backward == BackwardStrategy::two_scan && wants_keys) {
    const auto choice = two_scan_choice(p, device.shared_bytes);
    if (!choice) return std::nullopt;
    const Launches both{.two_scan = true, .queries = *choice, .keys = *choice, .reads = sm80_read_plan(p, choice->config)};
    if (both.wants_queries(p)) return both;
  }
  const auto queries = sm80_choice(p, Sm80Kernel::dq, device), keys = sm80_choice(p, Sm80Kernel::dkdv, device);
  if (!queries || (wants_keys && !keys)) return std::nullopt;
  return Launches{
      .two_scan = false, .queries = *queries, .keys = wants_keys ? keys : std::nullopt, .reads = sm80_read_plan(p, queries->config)};
}

class BackwardSm80 : public GpuExecutable {
 public:
  BackwardSm80(const problem::Problem& problem, const driver::DeviceFacts& facts, Launches launches)
      : GpuExecutable(problem.device.index),
        problem_(problem),
        read_plan_(std::move(launches.reads)),
        gradients_(problem, read_plan_, workspace_, kernels_),
        measure_(problem, facts.shared_bytes_per_block, kernels_),
        reads_(problem, facts.shared_bytes_per_block, read_plan_, workspace_, kernels_),
        two_scan_(launches.two_scan) {
    const problem::Problem& p = problem_;
    const auto real = p.dtype == DType::f64 ? sizeof(double) : sizeof(float);
    const std::int64_t rows = p.varlen ? p.total_q : p.batch * p.seqlen_q;
    lse2_offset_ = workspace_.reserve(static_cast<std::size_t>(rows * p.heads_q) * real);
    largest_offset_ = workspace_.reserve(static_cast<std::size_t>(rows * p.heads_q) * real);
    delta_offset_ = workspace_.reserve(static_cast<std::size_t>(rows * p.heads_q) * real);

    const auto emplace = [&](std::optional<PassSm80>& pass, Sm80Kernel half, Sm80Kernel kernel, const Chosen<Sm80Config>& choice) {
      pass.emplace(p, half, choice, backward_sm80_source(p, kernel, choice.config), workspace_, kernels_);
    };
    if (two_scan_) {  // queries_ launches both halves, for which keys_ places its table
      emplace(queries_, Sm80Kernel::two_scan, Sm80Kernel::two_scan, launches.queries);
      emplace(keys_, Sm80Kernel::dkdv, Sm80Kernel::two_scan, *launches.keys);
    } else {
      if (launches.keys) emplace(keys_, Sm80Kernel::dkdv, Sm80Kernel::dkdv, *launches.keys);
      const bool wants_queries = p.dq.present || !read_plan_.of(Collector::beside_dq).empty();
      if (wants_queries) emplace(queries_, Sm80Kernel::dq, Sm80Kernel::dq, launches.queries);
    }
    delta_ = kernels_.add(delta_sm80_source(p));
  }

  std::size_t workspace_bytes() const override { return workspace_.bytes(); }
  std::string kernel() const override {
    return base::join("cuda.sm80.", to_string(problem_.dtype), ".backward.", two_scan_ ? "two_scan" : "split");
  }

  void describe(Explanation& e) const override {
    e.kernel = kernel();
    e.strategy = two_scan_ ? "two_scan" : "split";
    e.reduction = gradients_.text();
    read_plan_.describe(e, problem_);
    reads_.describe(e, problem_);
    if (keys_) keys_->describe(e, "dk, dv", problem_, 1 + problem_.dk.present, 1 + problem_.dv.present);
    if (queries_) queries_->describe(e, "dq", problem_, 1 + problem_.dq.present, 1);
  }

  void run(const problem::Buffers& buffers, void* workspace, Stream stream) const override {
    const problem::Problem& p = problem_;
    const driver::Current current(device_);
    device::AttentionArgs args = attention_args(p, buffers);
    const std::int64_t rows = p.varlen ? p.total_q : p.seqlen_q;
    args.lse2 = {Workspace::at<void>(workspace, lse2_offset_), p.varlen ? 0 : p.heads_q * rows, rows, 1};
    args.largest = {Workspace::at<void>(workspace, largest_offset_), p.varlen ? 0 : p.heads_q * rows, rows, 1};
    args.delta = {Workspace::at<void>(workspace, delta_offset_), p.varlen ? 0 : p.heads_q * rows, rows, 1};
    gradients_.prepare(args, buffers, workspace, stream);

    args.tiles_q = static_cast<int>(base::divide_up(p.seqlen_q, delta_config.block_q));
    delta_->launch({.grid_x = static_cast<unsigned>(args.tiles_q * p.heads_q * p.batch), .threads = delta_config.threads()}, args, stream);
    measure_.run(p, args, stream);
    if (keys_) keys_->place(args, workspace, stream);
    if (keys_ && !two_scan_) keys_->launch(args, args.tiles_kv * p.heads_kv * p.batch, stream);
    if (queries_) {
      queries_->place(args, workspace, stream);
      const std::int64_t tasks = std::max(args.tiles_q * p.heads_q, two_scan_ ? args.tiles_kv * p.heads_kv : 0);
      queries_->launch(args, tasks * p.batch, stream);
    }
    reads_.run(p, args, workspace, stream);
    gradients_.finish(args, buffers, stream);
  }

 private:
  problem::Problem problem_;
  Workspace workspace_;
  ReadPlan read_plan_;
  ParamGradients gradients_;
  MeasureSm80 measure_;
  ReadPasses reads_;
  bool two_scan_;
  std::size_t lse2_offset_ = 0, largest_offset_ = 0, delta_offset_ = 0;
  std::optional<PassSm80> keys_, queries_;
  jit::KernelHandle delta_;
};

std::optional<std::string> refuses_backward_sm80(const problem::Problem& p) {
  if (auto reason = refuses_sm80(p)) return reason;
  if (p.keeps_rows) return "rows are not kept from part to part";
  if (p.attention.backward == BackwardStrategy::fused)
    return "the portable kernels have no fused backward; use split, two_scan or automatic";
  if (p.attention.backward == BackwardStrategy::two_scan && std::max(p.head_dim, p.head_dim_v) > 256)
    return "two_scan takes head dims to 256; use split or automatic";
  return std::nullopt;
}

std::optional<std::string> refuses(const problem::Problem& p, std::size_t shared_bytes, const Launches& launches) {
  if (launches.keys)
    if (auto reason = TileTables::refuses(p, launches.keys->config.block_q, launches.keys->config.block_kv)) return reason;
  if (launches.wants_queries(p))
    if (auto reason = TileTables::refuses(p, launches.queries.config.block_q, launches.queries.config.block_kv)) return reason;
  return ReadPasses::refuses(p, shared_bytes, launches.reads);
}

Design design_backward_sm80(const problem::Problem& p, const driver::DeviceFacts& facts) {
  if (auto reason = refuses_backward_sm80(p)) return Design::refused(*std::move(reason));
  const std::size_t limit = facts.shared_bytes_per_block;
  const auto launches = launches_of(p, sm80_device(facts));
  if (!launches || !sm80_choice(p, Sm80Kernel::measure, limit))
    return Design::refused(base::join("a tile of head_dim ", p.head_dim, " does not fit into ", limit, " bytes of shared memory"));
  if (auto reason = refuses(p, limit, *launches)) return Design::refused(*std::move(reason));
  return {.make = [p, facts, launches = *launches] { return std::make_unique<BackwardSm80>(p, facts, launches); }};
}

std::vector<Family> families_backward_sm80(const problem::Problem& p, const driver::DeviceFacts& facts) {
  std::vector<Family> all;
  if (p.attention.backward == BackwardStrategy::two_scan) return all;  // one configuration for both halves
  for (const Sm80Kernel kernel : {Sm80Kernel::dq, Sm80Kernel::dkdv}) {
    if (!(kernel == Sm80Kernel::dq ? p.dq.present : p.dk.present || p.dv.present)) continue;
    all.push_back({sm80_family(kernel), {}});
    for (const Sm80Config& config : sm80_space(p, kernel, facts.shared_bytes_per_block)) all.back().configs.push_back(text_of(config));
  }
  return all;
}

}  // namespace

const Candidate backward_sm80{.pass = Pass::backward, .design = design_backward_sm80, .families = families_backward_sm80};

jit::KernelSource delta_sm80_source(const problem::Problem& p) {
  jit::KernelSource source = source_of(p, "delta_sm80");
  Sm80Config(delta_config).set(source.constants);
  return source;
}

jit::KernelSource backward_sm80_source(const problem::Problem& p, Sm80Kernel kernel, const Sm80Config& config) {
  jit::KernelSource source = source_of(p, sm80_stem(kernel));
  config.set(source.constants);
  source.constants.set_shared_bytes(config.shared_bytes(p, kernel));
  return source;
}

jit::KernelSource pairs_sm80_source(const problem::Problem& p, const Sm80Config& config, int read) {
  jit::KernelSource source = backward_sm80_source(p, Sm80Kernel::pairs, config);
  const scoring::TrainableRead& facts = p.score->reads[static_cast<std::size_t>(read)];
  bool shared = true;  // does every walked (batch, head) add to one address?
  for (const scoring::ValueId index : facts.index) {
    const scoring::Op op = p.score->backward[index].op;
    const auto depends = p.score->backward.depends[static_cast<std::size_t>(index)];
    const bool own = op == scoring::Op::batch || op == scoring::Op::head;
    shared = shared && (own || (depends & (scoring::depends_batch | scoring::depends_head)) == 0);
  }
  const device::PairsRead pairs{.read = read, .own_batch = facts.reads_batch, .own_head = facts.reads_head, .shares_address = shared};
  source.constants.set_struct("kPairs", "PairsRead", "sm80_config.cuh", pairs);
  return source;
}

std::optional<Chosen<Sm80Config>> two_scan_choice(const problem::Problem& p, std::size_t limit) {
  for (const Sm80Config config : {device::PortableConfig{.block_q = 64, .block_kv = 64, .warps = 4, .stages = 2},
                                  device::PortableConfig{.block_q = 64, .block_kv = 64, .warps = 4},
                                  device::PortableConfig{.block_q = 32, .block_kv = 32, .warps = 2},
                                  device::PortableConfig{.block_q = 16, .block_kv = 16, .warps = 1}}) {
    if (config.shared_bytes(p, Sm80Kernel::two_scan) <= limit)
      return Chosen<Sm80Config>{config, "two_scan: square tiles, as both scans own 16 rows per warp and split no columns (not timed)"};
  }
  return std::nullopt;
}

}  // namespace foveal::cuda
