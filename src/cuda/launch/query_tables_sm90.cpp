#include "cuda/launch/attention_args.h"
#include "cuda/launch/gradient_pass_sm90.h"
#include "cuda/score/score_emit.h"

namespace foveal::cuda {
namespace {

jit::KernelSource source_of(const HopperProblem& problem, const Sm90RowsConfig& config) {
  const problem::Problem& p = problem.problem;
  device::RowsConfig whole = config;
  whole.tile_source = problem.mask.tiles;
  jit::KernelSource source{.stem = "rows_sm90", .constants = attention_constants(p)};
  source.score = emit_score(p, {.pairs = true, .rows = config.reads, .band = !problem.mask.is_list()});
  source.constants.set_struct("kConfig", "RowsConfig", "sm90_config.cuh", whole);
  source.constants.set_shared_bytes(config.shared_bytes(p));
  return source;
}

}  // namespace

GradientKernelSm90 query_tables_sm90(const HopperProblem& problem, const Sm90RowsConfig& config, const driver::DeviceFacts& facts) {
  const problem::Problem& p = problem.problem;
  return {.name = "rows",
          .source = source_of(problem, config),
          .block_q = config.block_q(),
          .block_kv = config.block_kv,
          .stages = config.stages,
          .threads = config.threads(),
          .shared_bytes = config.shared_bytes(p),
          .walk = Sm90Walk::keys,
          .schedule = sm90_schedule(
              {.row_cost = sm90_row_cost(problem.mask, p.seqlen_q, config.block_q(), p.seqlen_kv, config.block_kv, Sm90Walk::keys),
               .heads = p.heads_q,
               .batch = p.batch,
               .head_bytes = 2 * p.seqlen_kv * (p.head_dim + p.head_dim_v)},
              schedule_costs::collect, {facts.multiprocessors, facts.l2_bytes})};
}

}  // namespace foveal::cuda
