#pragma once
// Infinity and NaN in the tensors of a case.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "problem/case_data.h"

namespace foveal::test {

/// Sets elements of the last head of some tokens of the first sequence (packed: of all): all of them, or every third.
struct Poison {
  const char* role;
  int token;
  double value;
  bool whole;
  int tokens = 1;
};

inline void poison(problem::CaseData& data, const Poison& p) {
  const TensorView view = data.view(p.role);
  std::vector<double> values = problem::values_of(view);
  const auto rank = static_cast<std::size_t>(view.rank);  // packed ones have no batch
  const std::int64_t heads = view.sizes[rank - 2], dim = view.sizes[rank - 1];
  for (int token = p.token; token < p.token + p.tokens; ++token)
    for (std::int64_t d = 0; d < dim; ++d)
      if (p.whole || d % 3 == 0) values[static_cast<std::size_t>((token * heads + heads - 1) * dim + d)] = p.value;
  problem::set_values(view, values);
}

}  // namespace foveal::test
