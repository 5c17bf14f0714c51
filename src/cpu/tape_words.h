#pragma once
// Tapes compute with integers of 32 bits. Whether those of a call fit is known from the elements of its parameters.
#include <cstddef>
#include <vector>

#include "foveal/tensor.h"
#include "problem/problem.h"
#include "score/interval.h"

namespace foveal::cpu {

class WordCheck {
 public:
  explicit WordCheck(const problem::Problem& problem);

  /// Of the memory that the check takes, aligned to 8.
  std::size_t bytes() const;

  /// Throws invalid_argument for an element beyond 32 bits, and where sums or products of elements may leave them.
  void operator()(const std::vector<TensorView>& params, void* memory) const;

 private:
  /// A program whose integers fit for some elements, and do not for others.
  struct Checked {
    const char* what;
    scoring::Program code;
    scoring::IntervalProgram program;
  };
  void add(const char* what, const scoring::Program& program);

  std::vector<problem::ParamSpec> params_;
  std::vector<Checked> programs_;
  scoring::Box box_{};
};

}  // namespace foveal::cpu
