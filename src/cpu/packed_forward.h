#pragma once
// The forward pass of targets with PackedForwardOps: keys and values are packed once for all queries.
#include <memory>

#include "cpu/setup.h"

namespace foveal::cpu {

/// There is no score_mod, masks are ranges of keys, and enough queries share the packed keys.
bool packed_forward_serves(const Setup<float>& setup);

/// `fallback` runs where there is a mask and v holds infinity or NaN, which masked pairs must not propagate, or where maxima are huge.
std::unique_ptr<planning::Executable> make_packed_forward(const problem::Problem& problem, const Target& target, const BlockOps<float>& ops,
                                                          const PlanOptions& options, std::unique_ptr<planning::Executable> fallback);

}  // namespace foveal::cpu
