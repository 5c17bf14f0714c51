#pragma once
// An expression in which symbols stand for other expressions.
#include <utility>
#include <vector>

#include "foveal/score.h"
#include "score/node.h"

namespace foveal::scoring {

/// `expr` (of any depth) with each of these symbols replaced, all at once; itself when it has none of them. Types must be the symbols'.
Expr substitute(const Expr& expr, const std::vector<std::pair<Op, Expr>>& symbols);

}  // namespace foveal::scoring
