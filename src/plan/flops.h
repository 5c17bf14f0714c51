#pragma once
// Nominal floating-point operations: two matmuls forward, five backward, two operations per multiply-add.
#include "problem/problem.h"

namespace foveal::planning {

/// Flops of all pairs, kept or not; for packed sequences with the mean number of keys.
inline double dense_flops(const problem::Problem& p) {
  const double per_pair = 2.0 * static_cast<double>(p.head_dim + p.head_dim_v);
  const double rows = static_cast<double>(p.heads_q) * static_cast<double>(p.varlen ? p.total_q : p.batch * p.seqlen_q);
  const double keys = p.ragged_kv() ? static_cast<double>(p.total_kv) / static_cast<double>(p.batch) : static_cast<double>(p.seqlen_kv);
  return rows * keys * per_pair * (p.pass == Pass::forward ? 1.0 : 2.5);
}

}  // namespace foveal::planning
