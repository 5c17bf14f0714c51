#pragma once
// The exact backend: all features, row by row in double, on tensors of any type and strides. It defines what is correct.
#include <memory>
#include <vector>

#include "plan/backend.h"
#include "problem/problem.h"

namespace foveal::reference {

std::unique_ptr<planning::Backend> make_reference_backend();

/// Runs some queries only: writes their rows of out, lse and dq, and their share of every other gradient. queries: one flag per token of q.
void run_queries(const problem::Problem& problem, const problem::Buffers& buffers, std::vector<bool> queries);

}  // namespace foveal::reference
