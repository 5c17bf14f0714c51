#include "cuda/launch/attention_args.h"
#include "cuda/launch/gradient_pass_sm90.h"
#include "cuda/score/score_emit.h"

namespace foveal::cuda {

GradientKernelSm90 collect_sm90(const HopperProblem& problem, const Sm90CollectConfig& config, const driver::DeviceFacts& facts) {
  const problem::Problem& p = problem.problem;
  return {.name = "gradients of parameters",
          .source = collect_sm90_source(problem, config),
          .block_q = config.block_q,
          .block_kv = config.block_kv,
          .stages = config.stages,
          .threads = config.threads,
          .shared_bytes = config.shared_bytes(p),
          .walk = Sm90Walk::queries,
          .schedule = sm90_schedule(
              {.row_cost = sm90_row_cost(problem.mask, p.seqlen_kv, config.block_kv, p.seqlen_q, config.block_q, Sm90Walk::queries),
               .heads = p.heads_kv,
               .batch = p.batch,
               .head_bytes = p.seqlen_q * 2 * (p.head_dim + p.head_dim_v) * p.group_size,  // q, dout
               .first_row_first = true},
              schedule_costs::collect, {facts.multiprocessors, facts.l2_bytes})};
}

jit::KernelSource collect_sm90_source(const HopperProblem& problem, const Sm90CollectConfig& config) {
  const problem::Problem& p = problem.problem;
  jit::KernelSource source{.stem = "collect_sm90", .constants = attention_constants(p)};
  source.score = emit_score(
      p, {.lines = config.lines, .pairs = true, .tanh = true, .bins = config.bins, .reads = config.reads, .band = !problem.mask.is_list()});
  device::BackwardConfig whole = config;
  whole.tile_source = problem.mask.tiles;
  source.constants.set_struct("kConfig", "BackwardConfig", "sm90_config.cuh", whole);
  source.constants.set_shared_bytes(config.shared_bytes(p));
  return source;
}

}  // namespace foveal::cuda
