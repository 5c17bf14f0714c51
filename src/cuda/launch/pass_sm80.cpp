#include "cuda/launch/pass_sm80.h"

#include <algorithm>

#include "base/check.h"
#include "base/divide.h"
#include "cuda/launch/backward_sm80.h"
#include "cuda/score/score_emit.h"

namespace foveal::cuda {
PassSm80::PassSm80(const problem::Problem& p, Sm80Kernel kind, const Chosen<Sm80Config>& choice, jit::KernelSource source,
                   Workspace& workspace, jit::KernelSet& kernels)
    : choice_(choice),
      tables_(p, choice.config.block_q, choice.config.block_kv, kind == Sm80Kernel::dkdv, workspace),
      shared_bytes_(static_cast<unsigned>(choice.config.shared_bytes(p, kind))),
      kernel_(kernels.add(std::move(source), shared_bytes_)) {
  tables_.add_to(kernels);
}

void PassSm80::launch(const device::AttentionArgs& args, std::int64_t ctas, Stream stream) const {
  kernel_->launch(
      {.grid_x = static_cast<unsigned>(ctas), .threads = static_cast<unsigned>(choice_.config.threads()), .shared_bytes = shared_bytes_},
      args, stream);
}

void PassSm80::describe_tiles(Explanation& e, const problem::Problem& p, int matmuls, int matmuls_v) const {
  tables_.describe(e, p);
  const Sm80Config& config = choice_.config;
  e.schedule.block_q = config.block_q, e.schedule.block_kv = config.block_kv, e.schedule.team = "CTA";
  e.flops += static_cast<double>(tables_.full + tables_.partial) * config.block_q * config.block_kv * 2.0 *
             (matmuls * static_cast<double>(p.head_dim) + matmuls_v * static_cast<double>(p.head_dim_v));
}

void PassSm80::describe(Explanation& e, const char* name, const problem::Problem& p, int matmuls, int matmuls_v) const {
  describe_tiles(e, p, matmuls, matmuls_v);
  e.details.emplace_back(name, base::join("tiles ", choice_.config.text(), ", registers ", facts().registers, ", spilled bytes ",
                                          facts().spill_bytes, ", shared bytes ", shared_bytes_));
  e.details.emplace_back(base::join(name, ": configuration"), choice_.why);
}

MeasureSm80::MeasureSm80(const problem::Problem& p, std::size_t limit, jit::KernelSet& kernels)
    : config_(sm80_choice(p, Sm80Kernel::measure, limit)->config),
      shared_bytes_(static_cast<unsigned>(config_.shared_bytes(p, Sm80Kernel::measure))),
      kernel_(kernels.add(backward_sm80_source(p, Sm80Kernel::measure, config_), shared_bytes_)) {}

void MeasureSm80::run(const problem::Problem& p, device::AttentionArgs args, Stream stream) const {
  args.tiles_q = static_cast<int>(base::divide_up(p.seqlen_q, config_.block_q));
  args.runs = {};  // every tile
  kernel_->launch({.grid_x = static_cast<unsigned>(args.tiles_q * p.heads_q * p.batch),
                   .threads = static_cast<unsigned>(config_.threads()),
                   .shared_bytes = shared_bytes_},
                  args, stream);
}

ReadPasses::ReadPasses(const problem::Problem& p, std::size_t limit, const ReadPlan& plan, Workspace& workspace, jit::KernelSet& kernels) {
  if (!plan.of(Collector::walk).empty()) {
    problem::Problem reads_only = p;
    reads_only.dq = {};
    const auto choice = *sm80_choice(p, Sm80Kernel::reads, limit);
    queries_.emplace(p, Sm80Kernel::reads, choice, backward_sm80_source(reads_only, Sm80Kernel::reads, choice.config), workspace, kernels);
  }
  for (const int number : plan.of(Collector::any_pairs)) {
    const scoring::TrainableRead& read = p.score->reads[static_cast<std::size_t>(number)];
    const auto choice = *sm80_choice(p, Sm80Kernel::pairs, limit);
    pairs_.push_back({PassSm80(p, Sm80Kernel::pairs, choice, pairs_sm80_source(p, choice.config, number), workspace, kernels),
                      (read.reads_batch ? p.batch : 1) * (read.reads_head ? p.heads_q : 1)});
  }
}

std::optional<std::string> ReadPasses::refuses(const problem::Problem& p, std::size_t limit, const ReadPlan& plan) {
  for (const auto& [collector, kernel] : {std::pair{Collector::walk, Sm80Kernel::reads}, {Collector::any_pairs, Sm80Kernel::pairs}}) {
    const std::vector<int> reads = plan.of(collector);
    if (reads.empty()) continue;
    const std::size_t param = plan.reads[static_cast<std::size_t>(reads.front())].facts.param;
    const auto choice = sm80_choice(p, kernel, limit);
    if (!choice)
      return base::join("the gradient of ", p.params[param].param.name(), " takes a pass of its own, whose tiles of head_dim ",
                        std::max(p.head_dim, p.head_dim_v), " and terms do not fit into ", limit, " bytes of shared memory");
    if (auto reason = TileTables::refuses(p, choice->config.block_q, choice->config.block_kv)) return reason;
  }
  return std::nullopt;
}

void ReadPasses::run(const problem::Problem& p, device::AttentionArgs args, void* workspace, Stream stream) const {
  if (queries_) {
    queries_->place(args, workspace, stream);
    queries_->launch(args, args.tiles_q * p.heads_q * p.batch, stream);
  }
  for (const Pairs& pairs : pairs_) {
    pairs.pass.place(args, workspace, stream);
    pairs.pass.launch(args, std::int64_t{args.tiles_q} * args.tiles_kv * pairs.owners, stream);
  }
}

void ReadPasses::describe(Explanation& e, const problem::Problem& p) const {
  if (queries_) queries_->describe(e, "reads", p, 1, 1);
  for (const Pairs& pairs : pairs_) pairs.pass.describe(e, "pairs", p, 1, 1);
}

}  // namespace foveal::cuda
