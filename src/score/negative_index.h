#pragma once
// Indices that count from the end where they are negative, and what bounds say of them: an index that is never negative needs no choice.
#include <vector>

#include "foveal/score.h"
#include "score/interval.h"

namespace foveal::scoring {

/// index, or size + index where it is negative. What holds for all positions whatever the lengths is decided at once.
Expr wrapped_index(const Expr& index, std::int64_t size);

/// `expr` without the choices (`where`) within indices that bounds over the box decide, at the pairs that `mask` keeps.
Expr settle_indices(const Expr& expr, const Expr& mask, const std::vector<Param>& params, const Box& box);

}  // namespace foveal::scoring
