#pragma once
// How the gradient of a read is reduced: from its indices alone.
#include <vector>

#include "score/graph.h"

namespace foveal::scoring {

Reduction classify_reduction(const Graph& graph, const std::vector<ValueId>& index);

}  // namespace foveal::scoring
