#pragma once
// Python-style indices that count from the end if they are negative, and their simplification by interval bounds.
#include <vector>

#include "foveal/score.h"
#include "score/interval.h"

namespace foveal::scoring {

/// where(index < 0, index + size, index), without the `where` if its condition is the same at all positions, whatever the lengths.
Expr wrapped_index(const Expr& index, std::int64_t size);

/// `expr` without every `where` inside an index whose condition has one value at all pairs of the box that `mask` keeps.
Expr simplify_indices(const Expr& expr, const Expr& mask, const std::vector<Param>& params, const Box& box);

}  // namespace foveal::scoring
