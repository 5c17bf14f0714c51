#include "cuda/launch/pairs_sm90.h"

#include <algorithm>

#include "base/check.h"
#include "cuda/launch/attention_args.h"
#include "cuda/score/score_emit.h"

namespace foveal::cuda {

PairsSm90::PairsSm90(const problem::Problem& p, const PlannedRead& planned, const Sm90PairsConfig& config, const driver::DeviceFacts& facts,
                     Workspace& workspace, jit::KernelSet& kernels)
    : problem_(p), config_(config) {
  const int block_q = config_.block_q, block_kv = config_.block_kv;
  const scoring::TrainableRead& read = p.score->reads[static_cast<std::size_t>(planned.read)];
  param_ = read.param;
  covers_ = planned.facts.covers;
  const Sm90Mask mask = sm90_mask(p);
  keys_in_reach_ = sm90_keys_in_reach(p, mask);
  if (mask.tiles == Sm90Tiles::list) tables_.emplace(p, block_q, block_kv, false, workspace);

  const std::int64_t heads = read.reads_head ? p.heads_q : 1, batch = read.reads_batch ? p.batch : 1;
  const std::int64_t sharers = p.heads_q * p.batch / (heads * batch);
  const std::vector<Sm90TileRange> rows = sm90_row_tiles(mask, p.seqlen_q, block_q, p.seqlen_kv, block_kv, Sm90Walk::keys);
  const Sm90RowParts parts = sm90_schedule_row_parts(rows,
                                                     {.row_cost = {},
                                                      .heads = heads,
                                                      .batch = batch,
                                                      .head_bytes = sharers * 2 * (p.seqlen_q + p.seqlen_kv) * (p.head_dim + p.head_dim_v)},
                                                     schedule_costs::pairs, {facts.multiprocessors, facts.l2_bytes});
  row_parts_ = parts.parts;
  schedule_ = parts.schedule;
  shared_bytes_ = config_.shared_bytes(p);
  kernel_ = kernels.add(pairs_sm90_source(p, config_, planned.read, covers_), shared_bytes_);
  if (tables_) tables_->add_to(kernels);
}

void PairsSm90::run(const problem::Buffers& buffers, const device::Sm90Args& backward, void* workspace, Stream stream) const {
  const problem::Problem& p = problem_;
  const int block_q = config_.block_q, block_kv = config_.block_kv;
  device::PairsArgs args{backward, row_parts_, {}};
  sm90_set_pair_maps(args.sm90, config_.tiles, buffers, block_q);
  sm90_set_backward_maps(args.sm90, buffers, block_q, p.total_q, block_kv, keys_in_reach_);
  args.sm90.order = schedule_.order;
  if (tables_) tables_->place(args.sm90.attention, workspace, stream);
  kernel_->launch(
      {.grid_x = static_cast<unsigned>(schedule_.teams), .threads = static_cast<unsigned>(config_.threads), .shared_bytes = shared_bytes_},
      args, stream);
}

void PairsSm90::describe(Explanation& e) const {
  e.details.emplace_back(
      "pairs", base::join("tiles ", config_.block_q, "x", config_.block_kv, " stages ", config_.stages,
                          config_.pair_stages > 0 ? base::join(", of pairs ", config_.pair_stages) : "", ", ", schedule_.order.tasks,
                          " tasks, ", row_parts_.value, " a row, spilled bytes ", kernel_->image().facts.spill_bytes));
}

jit::KernelSource pairs_sm90_source(const problem::Problem& p, const Sm90PairsConfig& config, int number, bool covers) {
  const scoring::TrainableRead& read = p.score->reads[static_cast<std::size_t>(number)];
  jit::KernelSource source{.stem = "pairs_sm90", .constants = sm90_constants(p)};
  source.score = emit_score(p, {.pairs = true, .tiles = config.tiles, .band = sm90_mask(p).tiles != Sm90Tiles::list});
  source.constants.set("kBlockKv", config.block_kv).set("kConsumers", config.consumers).set("kStages", config.stages);
  source.constants.set("kPairStages", config.pair_stages).set("kTasksAhead", config.tasks_ahead).set("kPairsRead", number);
  source.constants.set("kSharedBytes", static_cast<int>(config.shared_bytes(p)));
  source.constants.set_type("Gradient", element_type(p.params[static_cast<std::size_t>(read.param)].gradient.dtype));
  source.constants.set("kPairsOwnBatch", read.reads_batch).set("kPairsOwnHead", read.reads_head);
  const bool differ = pair_reads_differ(p, read);
  source.constants.set("kHoldPairs", !differ && (config.is_narrow() || is_light(p))).set("kPairsDiffer", differ).set("kCovers", covers);
  source.constants.set("kProducerRegisters", config.producer_registers()).set("kConsumerRegisters", config.consumer_registers());
  return source;
}

}  // namespace foveal::cuda
