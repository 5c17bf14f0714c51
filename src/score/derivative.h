#pragma once
// The symbolic derivative: forward mode, one variable at a time. What two derivatives have in common is made once, because the graph
// interns; `where` chooses between derivatives and never multiplies by them, so a branch that is not taken cannot bring in a NaN.
#include "score/graph.h"
#include "score/op_table.h"

namespace foveal::scoring {

/// d value / d variable, where variable is a leaf of the graph (the score or a read); zero_tangent when it does not depend on it.
ValueId differentiate(Graph& graph, ValueId value, ValueId variable);

}  // namespace foveal::scoring
