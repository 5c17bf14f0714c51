#pragma once
// An expression in which parts stand for other expressions.
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "foveal/score.h"
#include "score/node.h"

namespace foveal::scoring {

/// `expr` (of any depth) with parts replaced, all at once: those for which replacement(node) is not null.
Expr replace(const Expr& expr, const std::function<std::shared_ptr<const Node>(const Node&)>& replacement);

/// `expr` with each of these symbols replaced; itself when it has none of them. Types must be the symbols'.
Expr substitute(const Expr& expr, const std::vector<std::pair<Op, Expr>>& symbols);

}  // namespace foveal::scoring
