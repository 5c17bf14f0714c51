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

/// Of many seeds of `sizes` and few of `program`: lines that share kernels on a GPU. `program` draws the pass, types, head_dim, mask, score and options, `sizes`
/// how many of everything there are, the layout, the numbers and the data.
Line random_line(base::Random& program, base::Random& sizes, const RandomLimits& limits = {});

}  // namespace foveal::problem
