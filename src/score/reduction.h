#pragma once
// Along which lines of a tile values are the same, and how the gradient of a read is reduced: from its indices alone.
#include <vector>

#include "score/graph.h"

namespace foveal::scoring {

/// For each value up to `last`: is it a function of q_idx - kv_idx (and of what is the same for a whole tile) alone?
std::vector<bool> functions_of_difference(const Graph& graph, ValueId last);

Reduction classify_reduction(const Graph& graph, const std::vector<ValueId>& index);

}  // namespace foveal::scoring
