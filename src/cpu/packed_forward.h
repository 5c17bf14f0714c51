#pragma once
// The forward pass of targets with PackedOps: keys and values are packed once for all queries.
#include <memory>

#include "cpu/setup.h"

namespace foveal::cpu {

/// bf16 without dropout or checked reads, and enough queries share the packed keys.
bool packed_forward_serves(const Setup<float>& setup);

/// `setup`: of the fallback, which runs where v holds infinity or NaN and pairs may be dropped, or, without a program, where maxima are
/// huge.
std::unique_ptr<planning::Executable> make_packed_forward(const Setup<float>& setup, const Target& target, const PlanOptions& options,
                                                          std::unique_ptr<planning::Executable> fallback);

}  // namespace foveal::cpu
