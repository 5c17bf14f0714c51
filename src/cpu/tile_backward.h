#pragma once
// The backward pass of targets with TileBackwardOps: packed tiles of queries past packed blocks of keys.
#include <memory>

#include "cpu/setup.h"

namespace foveal::cpu {

/// All three gradients are wanted, scores are dot products, and there are queries enough to fill a tile. (A mask must be ranges of keys,
/// too.)
bool tile_backward_serves(const problem::Problem& problem, const BlockOps<float>& ops);

/// `otherwise` runs instead where a tensor holds infinity or NaN.
std::unique_ptr<planning::Executable> make_tile_backward(const problem::Problem& problem, const Target& target, const BlockOps<float>& ops,
                                                         const PlanOptions& options, std::unique_ptr<planning::Executable> otherwise);

}  // namespace foveal::cpu
