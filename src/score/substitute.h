#pragma once
// Replaces parts of an expression.
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "foveal/score.h"
#include "score/node.h"

namespace foveal::scoring {

/// `expr` with every node for which replacement(node) is not null replaced, simultaneously. Iterative: depth is unbounded.
Expr replace(const Expr& expr, const std::function<std::shared_ptr<const Node>(const Node&)>& replacement);

/// `expr` with these symbols replaced by expressions of the same type; `expr` itself if it contains none of them.
Expr substitute(const Expr& expr, const std::vector<std::pair<Op, Expr>>& symbols);

}  // namespace foveal::scoring
