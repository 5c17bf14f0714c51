#include "cuda/launch/forward_sm80.h"

#include <limits>

#include "base/check.h"
#include "cuda/launch/attention_args.h"
#include "cuda/launch/tile_tables.h"
#include "cuda/score_emit.h"
#include "cuda/tune/tuned.h"

namespace foveal::cuda {
namespace {

class ForwardSm80 : public GpuExecutable {
 public:
  ForwardSm80(const problem::Problem& problem, const Sm80Config& config)
      : problem_(problem),
        device_(problem.device.index),
        config_(config),
        tables_(problem, config.block_q, config.block_kv, false, workspace_),
        shared_bytes_(static_cast<unsigned>(config.shared_bytes(problem, Sm80Kernel::forward))) {
    sources_.push_back(forward_sm80_source(problem, config));
    sources_.insert(sources_.end(), tables_.sources().begin(), tables_.sources().end());
  }

  void load(const std::vector<std::shared_ptr<const jit::Image>>& images) override {
    kernel_ = jit::Kernel(images[0], device_, shared_bytes_);
    tables_.load(images.data() + 1, device_);
    tables_.upload(device_);
  }

  std::size_t workspace_bytes() const override { return workspace_.bytes(); }
  std::string kernel() const override { return base::join("cuda.sm80.", to_string(problem_.dtype), ".forward"); }

  void describe(Explanation& e) const override {
    e.kernel = kernel();
    tables_.describe(e, problem_);
    e.schedule.block_q = config_.block_q, e.schedule.block_kv = config_.block_kv, e.schedule.team = "CTA";
    const double tiles = static_cast<double>(e.tiles_full + e.tiles_partial);
    e.flops = tiles * config_.block_q * config_.block_kv * 2.0 * static_cast<double>(problem_.head_dim + problem_.head_dim_v);
    const jit::Facts& facts = kernel_.image().facts;
    e.details.emplace_back("tiles", config_.text());
    e.details.emplace_back("registers", std::to_string(facts.registers));
    e.details.emplace_back("spilled bytes", std::to_string(facts.spill_bytes));
    e.details.emplace_back("shared bytes", std::to_string(shared_bytes_));
  }

  void run(const problem::Buffers& buffers, void* workspace, Stream stream) const override {
    const driver::Current current(device_);
    device::AttentionArgs args = attention_args(problem_, buffers);
    args.tiles_q = static_cast<int>((problem_.seqlen_q + config_.block_q - 1) / config_.block_q);
    args.tiles_kv = static_cast<int>((problem_.seqlen_kv + config_.block_kv - 1) / config_.block_kv);
    args.runs = tables_.runs(workspace);
    tables_.make(args, workspace, stream);
    const auto blocks = static_cast<unsigned>(args.tiles_q * problem_.heads_q * problem_.batch);
    kernel_.launch({.grid_x = blocks, .threads = static_cast<unsigned>(config_.threads()), .shared_bytes = shared_bytes_}, args, stream);
  }

 private:
  problem::Problem problem_;
  int device_;
  Sm80Config config_;
  Workspace workspace_;
  TileTables tables_;
  unsigned shared_bytes_;
  jit::Kernel kernel_;
};

std::optional<std::string> refuses(const problem::Problem& p, const driver::DeviceFacts& facts) {
  if (auto reason = refuses_sm80(p, facts)) return reason;
  if (p.spread) return "keys of a part in stretches";
  if (!sm80_config(p, Sm80Kernel::forward, sm80_device(facts))) {
    return base::join("a tile of head_dim ", p.head_dim, " does not fit into ", facts.shared_bytes_per_block, " bytes of shared memory");
  }
  return std::nullopt;
}

std::unique_ptr<GpuExecutable> make(const problem::Problem& p, const driver::DeviceFacts& facts) {
  return std::make_unique<ForwardSm80>(p, *sm80_config(p, Sm80Kernel::forward, sm80_device(facts)));
}

std::vector<Family> families(const problem::Problem& p, const driver::DeviceFacts& facts) {
  Family family{sm80_family(Sm80Kernel::forward), {}};
  for (const Sm80Config& config : sm80_space(p, Sm80Kernel::forward, facts.shared_bytes_per_block))
    family.configs.push_back(text_of(config));
  return {family};
}

}  // namespace

const Candidate forward_sm80{"sm80", Pass::forward, refuses, make, families};

jit::KernelSource forward_sm80_source(const problem::Problem& problem, const Sm80Config& config) {
  jit::KernelSource source{
      .stem = "forward_sm80", .entry = "forward_sm80", .constants = attention_constants(problem), .score = emit_score(problem), .arch = {}};
  config.set(source.constants);
  return source;
}

std::optional<std::string> refuses_sm80(const problem::Problem& p, const driver::DeviceFacts& facts) {
  if (facts.capability() < 80) return base::join(facts.name, " has compute capability ", facts.major, ".", facts.minor, "; needs 8.0");
  if (p.head_dim > sm80_max_head_dim) return base::join("head_dim ", p.head_dim, " exceeds ", sm80_max_head_dim);
  if (p.head_dim_v > sm80_max_head_dim) return base::join("head_dim_v ", p.head_dim_v, " exceeds ", sm80_max_head_dim);
  if (p.params.size() > static_cast<std::size_t>(device::kMaxParams))
    return base::join(p.params.size(), " params exceed ", device::kMaxParams);
  constexpr std::int64_t smallest_tile = 16;
  const std::int64_t tasks = (std::max(p.seqlen_q, p.seqlen_kv) / smallest_tile + 1) * p.heads_q * p.batch;
  if (tasks > std::numeric_limits<std::int32_t>::max())
    return base::join("batch ", p.batch, " times heads ", p.heads_q, " makes too many tiles");
  return std::nullopt;
}

}  // namespace foveal::cuda
