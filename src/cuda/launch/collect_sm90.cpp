#include "cuda/launch/collect_sm90.h"

#include <algorithm>

#include "base/check.h"
#include "cuda/score/score_emit.h"
#include "cuda/tune/sm90_order.h"

namespace foveal::cuda {

CollectSm90::CollectSm90(const problem::Problem& p, const Sm90CollectConfig& config, const driver::DeviceFacts& facts)
    : config_(config), shared_bytes_(static_cast<unsigned>(config.shared_bytes(p))), source_(collect_sm90_source(p, config)) {
  const Sm90Mask mask = sm90_mask(p);
  keys_in_reach_ = sm90_keys_in_reach(p, mask);
  schedule_ = sm90_schedule({.row_cost = sm90_row_cost(mask, p.seqlen_kv, config.block_kv, p.seqlen_q, config.block_q, Sm90Walk::queries),
                             .heads = p.heads_kv,
                             .batch = p.batch,
                             .head_bytes = p.seqlen_q * 2 * (p.head_dim + p.head_dim_v) * p.group_size,  // q, dout
                             .first_row_first = true},
                            schedule_costs::collect, {facts.multiprocessors, facts.l2_bytes});
}

void CollectSm90::run(const problem::Buffers& buffers, const device::Sm90Args& backward, Stream stream) const {
  device::Sm90Args args = backward;
  args.k = sm90_tensor_map(buffers.k, config_.block_kv, keys_in_reach_);
  args.v = sm90_tensor_map(buffers.v, config_.block_kv, keys_in_reach_);
  args.order = schedule_.order;
  kernel_.launch({.grid_x = static_cast<unsigned>(schedule_.teams), .threads = Sm90CollectConfig::threads, .shared_bytes = shared_bytes_},
                 args, stream);
}

void CollectSm90::describe(Explanation& e) const {
  e.details.emplace_back("gradients of parameters",
                         base::join("tiles ", config_.block_q, "x", config_.block_kv, " stages ", config_.stages, ", ",
                                    schedule_.order.tasks, " tasks, spilled bytes ", kernel_.image().facts.spill_bytes));
}

jit::KernelSource collect_sm90_source(const problem::Problem& p, const Sm90CollectConfig& config) {
  jit::KernelSource source{.stem = "collect_sm90", .entry = "collect_sm90", .constants = sm90_constants(p), .score = {}, .arch = {}};
  source.score = emit_score(p, {.lines = config.lines,
                                .pairs = true,
                                .tanh = true,
                                .bins = config.bins,
                                .reads = config.reads,
                                .band = sm90_mask(p).tiles != Sm90Tiles::list});
  source.constants.set("kBackwardKernel", static_cast<int>(config.kernel))
      .set("kBlockQ", config.block_q)
      .set("kStages", config.stages)
      .set("kPairStages", 0)
      .set("kSplitsGroups", false)
      .set("kReproducible", false);
  source.constants.set("kCollects", true).set("kCollectsTerms", true);
  source.constants.set("kSharedBytes", static_cast<int>(config.shared_bytes(p)));
  source.constants.set("kProducerRegisters", config.producer_registers).set("kConsumerRegisters", config.consumer_registers);
  return source;
}

}  // namespace foveal::cuda
