#pragma once
// The schedule of the backward kernels: which CTA runs which task when, and among how many tasks the query heads of a kv head are split.
#include "cuda/jit/driver.h"
#include "cuda/tune/sm90_order.h"

namespace foveal::cuda {

/// May several tasks add to dk and dv of a kv head (launch/group_sums.h)? Not where their order matters.
bool sm90_splits_groups(const problem::Problem& problem);

/// A divisor of the group's size: the one with the least predicted time. One task for all heads of a group adds nothing to memory,
/// but leaves multiprocessors idle where kv heads are few, and under a causal mask such tasks drift apart, so that queries, dout and
/// dq of all heads are alive: more than L2 holds.
int sm90_group_tasks(const HopperProblem& problem, const Sm90BackwardConfig& config, const driver::DeviceFacts& facts);

/// config: with the group's tasks picked.
Sm90Schedule sm90_backward_schedule(const HopperProblem& problem, const Sm90BackwardConfig& config, const driver::DeviceFacts& facts);

}  // namespace foveal::cuda
