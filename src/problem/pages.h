#pragma once
// What block_table and seqlens_kv must say.
#include "problem/problem.h"

namespace foveal::problem {

/// Of each sequence: keys that the table holds, on pages that there are. Reads the tensors, in host memory; throws invalid_argument.
void check_pages(const Problem& problem, const TensorView& table, const TensorView& lengths);

}  // namespace foveal::problem
