#pragma once
// Symbolic differentiation in forward mode, one variable at a time; the graph shares common parts of several derivatives. The derivative of
// `where` selects between derivatives and never multiplies by a mask, so the branch not taken cannot contribute a NaN.
#include "score/graph.h"
#include "score/op_table.h"

namespace foveal::scoring {

/// d value / d variable, for a variable that is a leaf of the graph (the score or a read); zero_tangent if value does not depend on it.
ValueId differentiate(Graph& graph, ValueId value, ValueId variable);

}  // namespace foveal::scoring
