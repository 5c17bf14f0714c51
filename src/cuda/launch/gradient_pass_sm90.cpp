#include "cuda/launch/gradient_pass_sm90.h"

#include <utility>

#include "base/check.h"

namespace foveal::cuda {

GradientPassSm90::GradientPassSm90(const HopperProblem& problem, GradientKernelSm90 kernel, Workspace& workspace, jit::KernelSet& kernels)
    : design_(std::move(kernel)), queries_(problem.problem.total_q), keys_in_reach_(sm90_keys_in_reach(problem.problem, problem.mask)) {
  kernel_ = kernels.add(std::exchange(design_.source, {}), static_cast<unsigned>(design_.shared_bytes));
  if (!problem.mask.is_list() || design_.walk == Sm90Walk::queries) return;  // args have the tables of the backward pass
  tables_.emplace(problem.problem, design_.block_q, design_.block_kv, false, workspace);
  tables_->add_to(kernels);
}

void GradientPassSm90::run(const problem::Buffers& buffers, const device::Sm90Args& backward, void* workspace, Stream stream) const {
  device::PairsArgs args{backward, design_.row_parts.value_or(device::Divisor{}), {}};
  device::Sm90Args& sm90 = args.sm90;
  sm90_set_pair_maps(sm90, design_.tiles, buffers, design_.block_q);
  sm90_set_backward_maps(sm90, buffers, design_.block_q, queries_, design_.block_kv, keys_in_reach_);
  sm90.order = design_.schedule.order;
  if (tables_) tables_->place(sm90.attention, workspace, stream);
  const jit::LaunchShape shape{.grid_x = static_cast<unsigned>(design_.schedule.teams),
                               .threads = static_cast<unsigned>(design_.threads),
                               .shared_bytes = static_cast<unsigned>(design_.shared_bytes)};
  if (design_.row_parts) {
    kernel_->launch(shape, args, stream);
  } else {
    kernel_->launch(shape, sm90, stream);
  }
}

void GradientPassSm90::describe(Explanation& e) const {
  const GradientKernelSm90& d = design_;
  e.details.emplace_back(d.name, base::join("tiles ", d.block_q, "x", d.block_kv, " stages ", d.stages,
                                            d.pair_stages > 0 ? base::join(", of pairs ", d.pair_stages) : "", ", ", d.schedule.order.tasks,
                                            " tasks, ", d.row_parts ? base::join(d.row_parts->value, " a row, ") : "", "spilled bytes ",
                                            kernel_->image().facts.spill_bytes));
}

}  // namespace foveal::cuda
