#pragma once
// Which integers of a problem's programs need 64 bits, and whether those of a run do: that is known from the elements of its parameters.
#include <cstddef>
#include <vector>

#include "foveal/tensor.h"
#include "problem/problem.h"
#include "score/interval.h"

namespace foveal::cpu {

class IntegerWidths {
 public:
  explicit IntegerWidths(const problem::Problem& problem);

  /// For each value of a program, whatever the elements of the parameters are: is it an integer that may leave 32 bits, or a comparison of
  /// integers whose terms may, when they move from one side to the other?
  std::vector<char> wide(const scoring::Program& program) const;

  /// Is there any such value? If not, every run has integers of 32 bits.
  bool undecided() const { return !programs_.empty(); }
  /// Of the memory that the question below takes, aligned to 8.
  std::size_t bytes() const;
  /// May integers leave 32 bits with these parameters? Throws invalid_argument where they may leave 64.
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
