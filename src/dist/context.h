#pragma once
// The state of a context attention on one rank: the plan, this rank's part of it, and what it sends to whom.
#include <memory>
#include <vector>

#include "base/wide_type.h"
#include "dist/plan.h"
#include "dist/rows.h"
#include "dist/steps.h"
#include "foveal/dist.h"
#include "problem/problem.h"

namespace foveal::dist {

/// Rows of this rank's shard that another rank receives in one step, in the receiver's order.
struct Sending {
  int target = 0;
  std::vector<Transfer> rows;
};

struct Context {
  std::shared_ptr<Transport> transport;
  Attention attention;
  WholeShapes shapes;
  ContextOptions options;
  PlanRequest request;
  Workload workload;
  ContextPlan plan;
  RankPlan mine;
  std::vector<std::vector<Sending>> keys_to;  ///< for each step of the receivers, in the order in which they are sent
  std::vector<Sending> queries_to;            ///< of this rank's group
  std::vector<std::int64_t> q_tokens, kv_tokens;
  std::vector<std::string> mask_reads;  ///< parameters
  std::uint64_t mask_digest = 0;        ///< of their values when the plan was made
  bool reads_batch = false;             ///< the score or the mask depends on `batch`

  bool packed() const { return !shapes.lengths.empty(); }
  int rank() const { return mine.rank; }
  std::int64_t batch() const { return packed() ? 1 : shapes.batch; }
  bool is_sink(const ParamBinding& binding) const { return attention.sink && binding.param.name() == attention.sink->name(); }
  Range heads_q() const { return plan.heads(rank(), shapes.heads_q); }
  Range heads_kv() const { return plan.heads(rank(), shapes.heads_kv); }
  Range heads_q(int of) const { return plan.heads(of, shapes.heads_q); }
  Range heads_kv(int of) const { return plan.heads(of, shapes.heads_kv); }
  /// The type of partial results and statistics.
  DType wide() const { return base::wide_type(shapes.dtype); }
};

void run_pass(const Context& context, const ForwardInputs& inputs, const ForwardOutputs& outputs, Buffers& buffers);
void run_pass(const Context& context, const BackwardInputs& inputs, const BackwardOutputs& outputs, Buffers& buffers);

}  // namespace foveal::dist
