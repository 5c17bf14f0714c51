#include "base/check.h"
#include "cuda/launch/attention_args.h"
#include "cuda/launch/gradient_pass_sm90.h"
#include "cuda/score/score_emit.h"

namespace foveal::cuda {

GradientKernelSm90 pairs_sm90(const HopperProblem& problem, const PlannedRead& planned, const Sm90PairsConfig& config,
                              const driver::DeviceFacts& facts) {
  const problem::Problem& p = problem.problem;
  const scoring::TrainableRead& read = p.score->reads[static_cast<std::size_t>(planned.read)];
  const std::int64_t heads = read.reads_head ? p.heads_q : 1, batch = read.reads_batch ? p.batch : 1;
  const std::int64_t sharers = p.heads_q * p.batch / (heads * batch);
  const Sm90RowParts parts =
      sm90_schedule_row_parts(sm90_row_tiles(problem.mask, p.seqlen_q, config.block_q, p.seqlen_kv, config.block_kv, Sm90Walk::keys),
                              {.row_cost = {},
                               .heads = heads,
                               .batch = batch,
                               .head_bytes = sharers * 2 * (p.seqlen_q + p.seqlen_kv) * (p.head_dim + p.head_dim_v)},
                              schedule_costs::pairs, {facts.multiprocessors, facts.l2_bytes});
  return {.name = "pairs",
          .source = pairs_sm90_source(problem, config, planned.read, planned.facts.covers),
          .block_q = config.block_q,
          .block_kv = config.block_kv,
          .stages = config.stages,
          .threads = config.threads,
          .shared_bytes = config.shared_bytes(p),
          .walk = Sm90Walk::keys,
          .schedule = parts.schedule,
          .row_parts = parts.parts,
          .tiles = config.tiles,
          .pair_stages = config.pair_stages};
}

jit::KernelSource pairs_sm90_source(const HopperProblem& problem, const Sm90PairsConfig& config, int number, bool covers) {
  const problem::Problem& p = problem.problem;
  const scoring::TrainableRead& read = p.score->reads[static_cast<std::size_t>(number)];
  device::PairsConfig whole = config;
  whole.read = number;
  whole.own_batch = read.reads_batch, whole.own_head = read.reads_head;
  whole.pairs_differ = pair_reads_differ(p, read);
  whole.hold_pairs = !whole.pairs_differ && (config.is_narrow() || is_light(p));
  whole.covers = covers;
  whole.tile_source = problem.mask.tiles;
  jit::KernelSource source{.stem = "pairs_sm90",
                           .constants = attention_constants(p),
                           .score = emit_score(p, {.pairs = true, .tiles = config.tiles, .band = !problem.mask.is_list()})};
  source.constants.set_struct("kConfig", "PairsConfig", "sm90_config.cuh", whole);
  source.constants.set_shared_bytes(config.shared_bytes(p));
  source.constants.set_type("Gradient", jit::device_type(p.params[static_cast<std::size_t>(read.param)].gradient.dtype));
  return source;
}

}  // namespace foveal::cuda
