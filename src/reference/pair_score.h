#pragma once
// The score and the mask of one pair of positions, evaluated in double and in integers of 64 bits.
#include <cstdint>
#include <vector>

#include "problem/problem.h"
#include "score/evaluate.h"

namespace foveal::reference {

/// Reads parameters. Indices out of range are clamped; the first is remembered, because it may be an error.
class ParamValues : public scoring::ParamReader {
 public:
  ParamValues(const problem::Problem& problem, const std::vector<TensorView>& params) : problem_(problem), tensors_(params) {}
  double read(std::int32_t param, const std::int64_t* index) const override;
  std::int64_t read_integer(std::int32_t param, const std::int64_t* index) const override;

  void forget() { outside_param_ = -1; }
  /// Throws invalid_argument if the problem is checked and an index was out of range since forget().
  void refuse_outside(const scoring::Point& point) const;

 private:
  std::int64_t offset(const TensorView& tensor, std::int32_t param, const std::int64_t* index) const;

  const problem::Problem& problem_;
  const std::vector<TensorView>& tensors_;
  mutable std::int32_t outside_param_ = -1;
  mutable std::size_t outside_dimension_ = 0;
  mutable std::int64_t outside_index_ = 0;
};

/// The programs of a problem, and which of their integers some elements of the parameters make overflow. For a plan, as it allocates.
struct CheckedPrograms {
  struct Checked {
    Checked(const problem::Problem& problem, const scoring::Program& program);
    const scoring::Program& program;
    std::vector<scoring::ValueId> may_overflow{};
  };
  explicit CheckedPrograms(const problem::Problem& problem)
      : mask(problem, problem.score->mask), forward(problem, problem.score->forward), backward(problem, problem.score->backward) {}
  Checked mask, forward, backward;
};

/// Evaluates the programs of a problem. Keeps the values of the last evaluation, so each thread needs its own.
class PairScore {
 public:
  /// values: scalars(problem) of them.
  PairScore(const problem::Problem& problem, const problem::Buffers& buffers, const CheckedPrograms& programs, scoring::Scalar* values)
      : problem_(problem), params_(problem, buffers.params), programs_(programs), values_(values) {}
  static std::int64_t scalars(const problem::Problem& problem);

  /// Does the mask keep the pair?
  bool keeps(const scoring::Point& point);
  /// score_mod of point.score.
  double modified(const scoring::Point& point);
  /// d score_mod / d score. factor() and element() then refer to this point.
  double derivative(const scoring::Point& point);
  /// d score_mod / d (trainable read i of ScoreProgram::reads).
  double factor(std::size_t read) const;
  /// The row-major index of the element that the read returned.
  std::int64_t element(std::size_t read) const;

 private:
  /// Throws invalid_argument where an integer leaves 64 bits.
  double evaluate(const CheckedPrograms::Checked& checked, const scoring::Point& point);

  const problem::Problem& problem_;
  ParamValues params_;
  const CheckedPrograms& programs_;
  scoring::Scalar* values_;
};

}  // namespace foveal::reference
