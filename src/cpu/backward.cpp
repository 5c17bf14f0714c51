// The backward pass. For each tile of lanes and kv block
//
//   S^T = K Q^T;  P^T = exp2(S^T - lse);  dP^T = V dO^T;  dS^T = P^T (dP^T - delta) score_mod'
//   dV += P^T dO;   dK += dS^T Q;   dQ^T += K^T dS^T                                   where delta = sum over d of dO * O, less dlse
//
// in one of three ways:
//   fused     five products, with accumulators of dK and dV for each task (fused_backward.h)
//   split     seven products: dK and dV by blocks of keys, dQ by tiles (split_backward.h)
//   two_scan  the same two, as one list of tasks: each does some KV blocks, then some tiles, which balances causal work.
// The shape alone decides the order of additions: results are bitwise the same for any number of threads. (Where a target has
// PackedOps, packed_backward.cpp replaces fused if it can.)
#include "cpu/backward.h"

#include <type_traits>

#include "base/check.h"
#include "cpu/fused_backward.h"
#include "cpu/packed_backward.h"
#include "cpu/split_backward.h"

namespace foveal::cpu {
namespace {

template <class Real>
BackwardChoice choose(const Setup<Real>& s) {
  const KeyRowSums<Real> sums(s);
  const Shares shares(s.problem, s.planner, 4, sums.bytes(sums.rows()));
  if (const BackwardStrategy requested = s.problem.attention.backward; requested != BackwardStrategy::automatic)
    // In split strategies the shares matter only to parameter gradients.
    return {requested, requested == BackwardStrategy::fused ? shares.count : shares.useful, "asked for"};
  // Seven products instead of five are 1.4 times the work: worth it only where accumulators for enough tasks would take too much memory.
  if (shares.count < shares.useful && shares.groups * shares.count < Shares::wanted_tasks / 2)
    return {BackwardStrategy::split, shares.useful,
            base::join("accumulators for ", shares.useful, " shares would exceed ", Shares::limit >> 20, " MiB")};
  return {BackwardStrategy::fused, shares.count, base::join("five products instead of seven; ", shares.groups * shares.count, " tasks")};
}

}  // namespace

template <class Real>
std::unique_ptr<planning::Executable> make_backward(const problem::Problem& problem, const Target& target, const BlockOps<Real>& ops,
                                                    const PlanOptions& options) {
  auto setup = std::make_unique<const Setup<Real>>(problem, target, ops, options);
  const BackwardChoice choice = choose(*setup);
  if (choice.strategy != BackwardStrategy::fused) return std::make_unique<SplitBackward<Real>>(std::move(setup), choice);
  if constexpr (std::is_same_v<Real, float>)
    if (packed_backward_serves(*setup)) {
      const PackedForm form = setup->packed_form();
      return make_packed_backward(problem, target, ops, options, form, std::make_unique<FusedBackward<Real>>(std::move(setup), choice));
    }
  return std::make_unique<FusedBackward<Real>>(std::move(setup), choice);
}
template std::unique_ptr<planning::Executable> make_backward(const problem::Problem&, const Target&, const BlockOps<float>&,
                                                             const PlanOptions&);
template std::unique_ptr<planning::Executable> make_backward(const problem::Problem&, const Target&, const BlockOps<double>&,
                                                             const PlanOptions&);

}  // namespace foveal::cpu
