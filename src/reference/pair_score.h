#pragma once
// The score and the mask of one pair of positions, evaluated in double and in integers of 64 bits.
#include <cstdint>

#include "problem/problem.h"
#include "score/evaluate.h"

namespace foveal::reference {

/// Reads a problem's parameters. An index outside is clamped; the first one is remembered, for it may be an error.
class ParamValues : public scoring::ParamReader {
 public:
  ParamValues(const problem::Problem& problem, const problem::Buffers& buffers) : problem_(problem), buffers_(buffers) {}
  double read(std::int32_t param, const std::int64_t* index) const override;
  std::int64_t read_integer(std::int32_t param, const std::int64_t* index) const override;

  void forget() { outside_param_ = -1; }
  /// Throws invalid_argument when the problem is checked and an index was outside since forget().
  void refuse_outside(const scoring::Point& point) const;

 private:
  std::int64_t offset(const TensorView& tensor, std::int32_t param, const std::int64_t* index) const;

  const problem::Problem& problem_;
  const problem::Buffers& buffers_;
  mutable std::int32_t outside_param_ = -1;
  mutable std::size_t outside_dimension_ = 0;
  mutable std::int64_t outside_index_ = 0;
};

/// Evaluates the programs of a problem. Keeps the values of the last evaluation, so each thread needs its own.
class PairScore {
 public:
  /// values: scalars(problem) of them.
  PairScore(const problem::Problem& problem, const problem::Buffers& buffers, scoring::Scalar* values)
      : problem_(problem), params_(problem, buffers), values_(values) {}
  static std::int64_t scalars(const problem::Problem& problem);

  /// Does the mask keep the pair?
  bool keeps(const scoring::Point& point);
  /// score_mod of point.score.
  double modified(const scoring::Point& point);
  /// d score_mod / d score; afterwards factor() and element() answer for this point.
  double derivative(const scoring::Point& point);
  /// d score_mod / d (trainable read i of ScoreProgram::reads).
  double factor(std::size_t read) const;
  /// Which element of its parameter the read touched, as a row-major index.
  std::int64_t element(std::size_t read) const;

 private:
  const problem::Problem& problem_;
  ParamValues params_;
  scoring::Scalar* values_;
};

}  // namespace foveal::reference
