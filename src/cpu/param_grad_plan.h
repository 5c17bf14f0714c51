#pragma once
// How parameter gradients are accumulated: deterministic for any number of threads, in O(parameter) memory.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/tape.h"
#include "foveal/attention.h"
#include "problem/problem.h"

namespace foveal::cpu {

/// The backward's tasks are (batch, kv head, share) triples, share < shares, where shares depends on the shape only. Every task belongs to
/// one partition; the tasks of a partition must run in sequence, in increasing (batch, kv head, share); partitions may run concurrently.
/// Each partition has its own accumulators, or, where the partitions of a parameter touch different elements (`batch`, `head` or `q_idx` is
/// an index of every read, in the same dimension), all share one. finish() adds the partitions in order into the caller's tensors.
class ParamGradPlan {
 public:
  ParamGradPlan() = default;
  ParamGradPlan(const problem::Problem& problem, std::int64_t shares);

  bool empty() const { return accumulators_.empty(); }  ///< nothing to accumulate; finish() still writes the exact zeros
  std::int64_t partitions() const { return batch_parts_ * head_parts_ * share_parts_; }
  std::int64_t partition(std::int64_t batch, std::int64_t kv_head, std::int64_t share) const;
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  std::string reduction() const;  ///< for explain(): "rel_bias: diagonal, 12 partitions"
  /// Who sums each trained read, where, and why.
  void describe(Explanation& explanation, const problem::Problem& problem, const Tape& tape) const;

  /// Before the tasks, for each partition, and after the tasks. dparams: like Problem::params; absent views and the sink's are left alone.
  void clear(void* workspace, const std::vector<TensorView>& dparams, const Executor& executor) const;
  TapeGrads grads(void* workspace, const std::vector<TensorView>& dparams, std::int64_t partition) const;
  void finish(const void* workspace, const std::vector<TensorView>& dparams, const Executor& executor) const;

 private:
  struct Accumulator {
    int param;
    std::int64_t numel;
    bool wide;                            ///< doubles; otherwise floats
    bool plain;                           ///< the caller's tensor is like a copy
    bool direct;                          ///< one copy, and it is the caller's tensor itself
    bool per_batch, per_head, per_share;  ///< the partitions of different batches (heads, shares) need accumulators of their own
    std::int64_t copies;
    std::size_t offset, bytes;  ///< of the first copy; of one copy
  };
  void choose_partitions();
  std::size_t place();  ///< the accumulators of these partitions; returns their bytes
  std::int64_t copy_of(const Accumulator& accumulator, std::int64_t partition) const;

  std::vector<Accumulator> accumulators_;
  std::vector<int> zeros_;  ///< parameters whose gradient is exactly zero
  std::vector<std::string> texts_;
  std::int64_t batch_ = 1, heads_kv_ = 1, shares_ = 1;
  /// Each index is cut into this many runs; a partition is one run of each.
  std::int64_t batch_parts_ = 1, head_parts_ = 1, share_parts_ = 1;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace foveal::cpu
