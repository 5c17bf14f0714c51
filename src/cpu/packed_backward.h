#pragma once
// The backward pass of targets with PackedOps: packed tiles of queries and packed blocks of keys.
#include <memory>

#include "cpu/setup.h"

namespace foveal::cpu {

/// dq, dk and dv are all wanted, in bf16, without dropout or checked reads, and there are enough queries for a tile.
bool packed_backward_serves(const Setup<float>& setup);

/// `fallback` runs where a tensor holds infinity or NaN, or a row is far.
std::unique_ptr<planning::Executable> make_packed_backward(const problem::Problem& problem, const Target& target,
                                                           const BlockOps<float>& ops, const PlanOptions& options, PackedForm form,
                                                           std::unique_ptr<planning::Executable> fallback);

}  // namespace foveal::cpu
