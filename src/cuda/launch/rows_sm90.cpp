#include "cuda/launch/rows_sm90.h"

#include "base/check.h"
#include "cuda/score/score_emit.h"

namespace foveal::cuda {

RowsSm90::RowsSm90(const problem::Problem& p, const Sm90RowsConfig& config, const driver::DeviceFacts& facts, Workspace& workspace,
                   jit::KernelSet& kernels)
    : problem_(p), config_(config), shared_bytes_(static_cast<unsigned>(config.shared_bytes(p))) {
  const Sm90Mask mask = sm90_mask(p);
  keys_in_reach_ = sm90_keys_in_reach(p, mask);
  if (mask.tiles == Sm90Tiles::list) tables_.emplace(p, config.block_q(), config.block_kv, false, workspace);
  schedule_ = sm90_schedule({.row_cost = sm90_row_cost(mask, p.seqlen_q, config.block_q(), p.seqlen_kv, config.block_kv, Sm90Walk::keys),
                             .heads = p.heads_q,
                             .batch = p.batch,
                             .head_bytes = 2 * p.seqlen_kv * (p.head_dim + p.head_dim_v)},
                            schedule_costs::collect, {facts.multiprocessors, facts.l2_bytes});
  kernel_ = kernels.add(rows_sm90_source(p, config), shared_bytes_);
  if (tables_) tables_->add_to(kernels);
}

void RowsSm90::run(const problem::Buffers& buffers, const device::Sm90Args& backward, void* workspace, Stream stream) const {
  device::Sm90Args args = backward;
  sm90_set_backward_maps(args, buffers, config_.block_q(), problem_.total_q, config_.block_kv, keys_in_reach_);
  args.order = schedule_.order;
  if (tables_) tables_->place(args.attention, workspace, stream);
  kernel_->launch({.grid_x = static_cast<unsigned>(schedule_.teams),
                   .threads = static_cast<unsigned>(config_.threads()),
                   .shared_bytes = shared_bytes_},
                  args, stream);
}

void RowsSm90::describe(Explanation& e) const {
  e.details.emplace_back("rows", base::join("tiles ", config_.block_q(), "x", config_.block_kv, " stages ", config_.stages, ", ",
                                            schedule_.order.tasks, " tasks, spilled bytes ", kernel_->image().facts.spill_bytes));
}

jit::KernelSource rows_sm90_source(const problem::Problem& p, const Sm90RowsConfig& config) {
  jit::KernelSource source{.stem = "rows_sm90", .constants = sm90_constants(p)};
  source.score = emit_score(p, {.pairs = true, .rows = config.reads, .band = sm90_mask(p).tiles != Sm90Tiles::list});
  source.constants.set("kConsumers", config.consumers).set("kStages", config.stages);
  source.constants.set("kSharedBytes", static_cast<int>(config.shared_bytes(p)));
  source.constants.set("kProducerRegisters", config.producer_registers()).set("kConsumerRegisters", config.consumer_registers());
  return source;
}

}  // namespace foveal::cuda
