#pragma once
// Values that are constant along the diagonals of a tile, and the reduction of a read's gradient, from its indices.
#include <vector>

#include "score/graph.h"

namespace foveal::scoring {

/// For each value up to `last`: is it a function of q_idx - kv_idx and of values that are uniform over a tile?
base::IdVector<char> functions_of_difference(const Graph& graph, ValueId last);

/// diagonal: functions_of_difference() of all indices.
Reduction classify_reduction(const Graph& graph, const std::vector<ValueId>& index, const base::IdVector<char>& diagonal);

}  // namespace foveal::scoring
