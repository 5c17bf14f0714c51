#include "cuda/launch/forward_sm80.h"

#include <limits>

#include "base/check.h"
#include "cuda/launch/attention_args.h"
#include "cuda/launch/pass_sm80.h"
#include "cuda/score/score_emit.h"
#include "cuda/tune/tuned.h"

namespace foveal::cuda {
namespace {

class ForwardSm80 : public GpuExecutable {
 public:
  ForwardSm80(const problem::Problem& problem, const Chosen<Sm80Config>& choice)
      : GpuExecutable(problem.device.index),
        problem_(problem),
        pass_(problem, Sm80Kernel::forward, choice, forward_sm80_source(problem, choice.config), workspace_, kernels_) {}

  std::size_t workspace_bytes() const override { return workspace_.bytes(); }
  std::string kernel() const override { return base::join("cuda.sm80.", to_string(problem_.dtype), ".forward"); }

  void describe(Explanation& e) const override {
    e.kernel = kernel();
    pass_.describe_tiles(e, problem_, 1, 1);
    e.details.emplace_back("tiles", pass_.choice().config.text());
    e.details.emplace_back("configuration", pass_.choice().why);
    e.details.emplace_back("registers", std::to_string(pass_.facts().registers));
    e.details.emplace_back("spilled bytes", std::to_string(pass_.facts().spill_bytes));
    e.details.emplace_back("shared bytes", std::to_string(pass_.shared_bytes()));
  }

  void run(const problem::Buffers& buffers, void* workspace, Stream stream) const override {
    const driver::Current current(device_);
    device::AttentionArgs args = attention_args(problem_, buffers);
    pass_.place(args, workspace, stream);
    pass_.launch(args, args.tiles_q * problem_.heads_q * problem_.batch, stream);
  }

 private:
  problem::Problem problem_;
  Workspace workspace_;
  PassSm80 pass_;
};

Design design_forward_sm80(const problem::Problem& p, const driver::DeviceFacts& facts) {
  if (auto reason = refuses_sm80(p)) return Design::refused(*std::move(reason));
  if (p.spread) return Design::refused("keys of a part in ranges");
  const auto choice = sm80_choice(p, Sm80Kernel::forward, sm80_device(facts));
  if (!choice)
    return Design::refused(
        base::join("a tile of head_dim ", p.head_dim, " does not fit into ", facts.shared_bytes_per_block, " bytes of shared memory"));
  if (auto reason = TileTables::refuses(p, choice->config.block_q, choice->config.block_kv)) return Design::refused(*std::move(reason));
  return {.make = [p, choice = *choice] { return std::make_unique<ForwardSm80>(p, choice); }};
}

std::vector<Family> families_forward_sm80(const problem::Problem& p, const driver::DeviceFacts& facts) {
  Family family{sm80_family(Sm80Kernel::forward), {}};
  for (const Sm80Config& config : sm80_space(p, Sm80Kernel::forward, facts.shared_bytes_per_block))
    family.configs.push_back(text_of(config));
  return {family};
}

}  // namespace

const Candidate forward_sm80{.pass = Pass::forward, .design = design_forward_sm80, .families = families_forward_sm80};

jit::KernelSource forward_sm80_source(const problem::Problem& problem, const Sm80Config& config) {
  jit::KernelSource source{.stem = sm80_stem(Sm80Kernel::forward), .constants = attention_constants(problem), .score = emit_score(problem)};
  config.set(source.constants);
  source.constants.set_shared_bytes(config.shared_bytes(problem, Sm80Kernel::forward));
  return source;
}

std::optional<std::string> refuses_sm80(const problem::Problem& p) {
  if (p.head_dim > sm80_max_head_dim) return base::join("head_dim ", p.head_dim, " exceeds ", sm80_max_head_dim);
  if (p.head_dim_v > sm80_max_head_dim) return base::join("head_dim_v ", p.head_dim_v, " exceeds ", sm80_max_head_dim);
  if (auto reason = refuses_params(p)) return reason;
  constexpr std::int64_t smallest_tile = 16;
  const std::int64_t tasks = (std::max(p.seqlen_q, p.seqlen_kv) / smallest_tile + 1) * p.heads_q * p.batch;
  if (tasks > std::numeric_limits<std::int32_t>::max())
    return base::join("batch ", p.batch, " times heads ", p.heads_q, " makes too many tiles");
  return std::nullopt;
}

}  // namespace foveal::cuda
