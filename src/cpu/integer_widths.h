#pragma once
// Which integers of a problem's programs may need 64 bits, and whether they do in a run, given the elements of its parameters.
#include <cstddef>
#include <vector>

#include "foveal/tensor.h"
#include "problem/problem.h"
#include "score/interval.h"

namespace foveal::cpu {

class IntegerWidths {
 public:
  explicit IntegerWidths(const problem::Problem& problem);

  /// For each value of a program, for all possible elements of the parameters: is it an integer that may overflow 32 bits, or a comparison
  /// of integers whose terms may when they are moved from one side to the other?
  base::IdVector<char> wide(const scoring::Program& program) const;

  /// Whether there is any such value. If not, 32 bits suffice for every run.
  bool undecided() const { return !programs_.empty(); }
  /// Scratch for the call below, aligned to 8.
  std::size_t bytes() const;
  /// Whether integers may overflow 32 bits with these parameters. Throws invalid_argument where they may overflow 64.
  bool operator()(const std::vector<TensorView>& params, void* memory) const;

 private:
  struct Undecided {
    const char* what;
    scoring::Program code;
    scoring::IntervalProgram bounds;
  };
  void add(const char* what, const scoring::Program& program);

  std::vector<problem::ParamSpec> params_;
  std::vector<Undecided> programs_;
  scoring::Box box_{};
};

}  // namespace foveal::cpu
