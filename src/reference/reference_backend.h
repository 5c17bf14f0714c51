#pragma once
// The slow exact backend: everything foveal means, row by row in double, on tensors of any type and strides. What it computes is correct by
// definition.
#include <memory>
#include <vector>

#include "plan/backend.h"
#include "problem/problem.h"

namespace foveal::reference {

std::unique_ptr<planning::Backend> make_reference_backend();

/// What some queries alone give: their rows of out, lse and dq, and their share of every other gradient. queries: for each token of q, is
/// it one of them? The other rows are not touched.
void run_queries(const problem::Problem& problem, const problem::Buffers& buffers, std::vector<bool> queries);

}  // namespace foveal::reference
