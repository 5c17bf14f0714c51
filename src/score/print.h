#pragma once
// Canonical text.
#include <string>
#include <vector>

#include "score/graph.h"

namespace foveal::scoring {

/// Shared values are repeated where they occur; in large or deep expressions they are named: `_1 = exp(score); _1 * _1`.
std::string print(const Graph& graph, ValueId value);

/// `rel: real[4, 33]`, as parse_param() reads it.
std::string print(const Param::Info& param);

}  // namespace foveal::scoring
