#pragma once
// The schedule of the backward kernels: which CTA runs which task when, and among how many tasks the query heads of a kv head are split.
#include "cuda/jit/driver.h"
#include "cuda/tune/sm90_order.h"

namespace foveal::cuda {

/// May several tasks add to dk and dv of a kv head (launch/group_sums.h)? Not where the order of additions matters.
bool sm90_splits_groups(const problem::Problem& problem);

/// Into how many tasks the query heads of a kv head are split: the divisor of the group's size with the shortest predicted time. One task
/// for all heads of a group adds nothing in memory, but it leaves multiprocessors idle where kv heads are few. Under a causal mask such
/// tasks also drift apart, so that q, dout and dq of all heads are in use at once, more than L2 holds.
int sm90_group_tasks(const HopperProblem& problem, const Sm90BackwardConfig& config, const driver::DeviceFacts& facts);

/// config: with group_tasks chosen.
Sm90Schedule sm90_backward_schedule(const HopperProblem& problem, const Sm90BackwardConfig& config, const driver::DeviceFacts& facts);

}  // namespace foveal::cuda
