#pragma once
// Values that are constant along the diagonals of a tile.
#include "score/graph.h"

namespace foveal::scoring {

/// For each value up to `last`: is it a function of q_idx - kv_idx and of values that are uniform over a tile?
base::IdVector<char> functions_of_difference(const Graph& graph, ValueId last);

}  // namespace foveal::scoring
