#pragma once
// Problems for fuzzing: a seed gives a line, anywhere in the feature matrix, small enough to be checked in milliseconds.
#include "base/random.h"
#include "problem/line.h"

namespace foveal::problem {

struct RandomLimits {
  std::int64_t seqlen = 150;    ///< longest sequence
  std::int64_t head_dim = 160;  ///< largest head_dim; now and then up to 512
  std::int64_t pairs = 60000;   ///< batch * heads * seqlen_q * seqlen_kv
};

Line random_line(base::Random& random, const RandomLimits& limits = {});

}  // namespace foveal::problem
