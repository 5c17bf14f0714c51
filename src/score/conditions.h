#pragma once
// What a mask says about symbols: linear sums that are at most 0 wherever it keeps a pair.
#include <vector>

#include "score/linear.h"

namespace foveal::scoring {

struct Conditions {
  std::vector<Linear> sums{};  ///< in_symbols()
  bool are_all = true;         ///< the mask keeps every pair at which these hold
};
/// Those that a mask program joins by &. An empty program keeps everything.
Conditions conditions_of(const Program& mask);

}  // namespace foveal::scoring
