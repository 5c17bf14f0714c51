#pragma once
// The canonical text of a program's first output.
#include <string>
#include <vector>

#include "score/graph.h"

namespace foveal::scoring {

/// Shared parts are written out where they stand; in a large or deep expression they get names: `_1 = exp(score); _1 * _1`.
std::string print(const Graph& graph, ValueId value);

/// `rel: real[4, 33]`, the form that parse_param() reads.
std::string print(const Param::Info& param);

}  // namespace foveal::scoring
