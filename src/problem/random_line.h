#pragma once
// Random problems for fuzzing, from the whole feature matrix and small enough to be checked in milliseconds.
#include "base/random.h"
#include "problem/line.h"

namespace foveal::problem {

struct RandomLimits {
  std::int64_t seqlen = 150;    ///< longest sequence
  std::int64_t head_dim = 160;  ///< largest head_dim; now and then up to 512
  std::int64_t pairs = 60000;   ///< batch * heads * seqlen_q * seqlen_kv
};

Line random_line(base::Random& random, const RandomLimits& limits = {});

/// With few seeds of `program` and many of `sizes`, lines share GPU kernels. `program` determines pass, dtypes, head_dim, mask, score and
/// options, `sizes` all sizes, the layout, constants and the data.
Line random_line(base::Random& program, base::Random& sizes, const RandomLimits& limits = {});

}  // namespace foveal::problem
