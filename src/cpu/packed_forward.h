#pragma once
// The forward pass of targets with PackedOps: keys and values are packed once for all queries.
#include <memory>

#include "cpu/setup.h"

namespace foveal::cpu {

/// bf16 without dropout or checked reads, and enough queries share the packed keys.
bool packed_forward_serves(const Setup<float>& setup);

/// `fallback` runs where v holds infinity or NaN and pairs may be dropped, or, without a program, where maxima are huge.
std::unique_ptr<planning::Executable> make_packed_forward(const problem::Problem& problem, const Target& target, const BlockOps<float>& ops,
                                                          const PlanOptions& options, PackedForm form,
                                                          std::unique_ptr<planning::Executable> fallback);

}  // namespace foveal::cpu
