#pragma once
// What a rank keeps of a context attention: the plan, its own part of it, and what it must send to whom.
#include <memory>
#include <vector>

#include "dist/plan.h"
#include "dist/rows.h"
#include "dist/steps.h"
#include "foveal/dist.h"
#include "problem/problem.h"

namespace foveal::dist {

/// What a rank sends to another one in one step: rows of its shard, in the order in which the receiver lists them.
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
  std::vector<std::vector<Sending>> keys_to;  ///< for each step of the receivers
  std::vector<Sending> queries_to;            ///< of this rank's group
  std::vector<std::int64_t> q_tokens, kv_tokens;
  std::vector<std::string> mask_reads;  ///< parameters
  std::uint64_t mask_digest = 0;        ///< of their data when the plan was made
  bool reads_batch = false;             ///< the score or the mask tells sequences apart by their number

  bool packed() const { return !shapes.lengths.empty(); }
  int rank() const { return mine.rank; }
  std::int64_t batch() const { return packed() ? 1 : shapes.batch; }
  Range heads_q() const { return plan.heads(rank(), shapes.heads_q); }
  Range heads_kv() const { return plan.heads(rank(), shapes.heads_kv); }
  Range heads_q(int of) const { return plan.heads(of, shapes.heads_q); }
  Range heads_kv(int of) const { return plan.heads(of, shapes.heads_kv); }
  /// Of partial results, and of statistics.
  DType wide() const { return shapes.dtype == DType::f64 ? DType::f64 : DType::f32; }
};

void run_forward(const Context& context, const ForwardInputs& inputs, const ForwardOutputs& outputs, Buffers& buffers);
void run_backward(const Context& context, const BackwardInputs& inputs, const BackwardOutputs& outputs, Buffers& buffers);

}  // namespace foveal::dist
