#pragma once
// The error of Attention::checked: an index out of range at a pair that the mask keeps.
#include <cstdint>
#include <string>

#include "base/check.h"

namespace foveal::problem {

struct Outside {
  std::string param;
  std::int64_t index, dimension, last;  ///< last: the largest valid index
  std::int64_t batch, head, q_idx, kv_idx;
};

inline std::string describe(const Outside& outside) {
  return base::join("parameter ", outside.param, ": index ", outside.index, " in dimension ", outside.dimension, " at batch ",
                    outside.batch, ", head ", outside.head, ", q_idx ", outside.q_idx, ", kv_idx ", outside.kv_idx, "; expected 0 to ",
                    outside.last);
}

}  // namespace foveal::problem
