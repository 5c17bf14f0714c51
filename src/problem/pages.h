#pragma once
// Checks of block_table and seqlens_kv.
#include "problem/problem.h"

namespace foveal::problem {

/// Reads both tensors, in host memory; throws invalid_argument if a length exceeds the table or a page does not exist.
void check_pages(const Problem& problem, const TensorView& table, const TensorView& lengths);

}  // namespace foveal::problem
