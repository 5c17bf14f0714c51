#pragma once
// The forward pass of targets with RowOps: rows of queries past packed keys and values.
#include <memory>

#include "cpu/setup.h"

namespace foveal::cpu {

/// Scores are dot products, and there are queries enough to be worth the packing of the keys. (A mask must be ranges of keys, too.)
bool row_forward_serves(const problem::Problem& problem, const BlockOps<float>& ops);

/// `otherwise` runs instead where there is a mask and v holds infinity or NaN, which masked pairs must not pass on, or where maxima are
/// huge.
std::unique_ptr<planning::Executable> make_row_forward(const problem::Problem& problem, const Target& target, const BlockOps<float>& ops,
                                                       const PlanOptions& options, std::unique_ptr<planning::Executable> otherwise);

}  // namespace foveal::cpu
