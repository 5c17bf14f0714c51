#pragma once
// The score and the mask of one pair of positions, evaluated in double.
#include <cstdint>

#include "problem/problem.h"

namespace foveal::reference {

struct Pair {
  std::int64_t batch, head, q_idx, kv_idx, seqlen_q, seqlen_kv;
};

/// Evaluates the programs of a problem. Keeps the values of the last evaluation, so each thread needs its own.
class PairScore {
 public:
  /// values: doubles(problem) of them.
  PairScore(const problem::Problem& problem, const problem::Buffers& buffers, double* values)
      : problem_(problem), buffers_(buffers), values_(values) {}
  static std::int64_t doubles(const problem::Problem& problem);

  /// Does the mask keep the pair?
  bool keeps(const Pair& pair);
  /// score_mod(raw).
  double modified(const Pair& pair, double raw);
  /// d score_mod / d raw; afterwards factor() and element() answer for this pair.
  double derivative(const Pair& pair, double raw);
  /// d score_mod / d (trainable read i of ScoreProgram::reads).
  double factor(std::size_t read) const;
  /// Which element of its parameter the read touched, as a row-major index.
  std::int64_t element(std::size_t read) const;

 private:
  void evaluate(const scoring::Program& program, const Pair& pair, double raw);
  double read(const scoring::Instr& instr);
  std::int64_t clamped(std::size_t param, std::size_t dimension, double index);
  void refuse_out_of_range(const Pair& pair) const;

  const problem::Problem& problem_;
  const problem::Buffers& buffers_;
  double* values_;
  // The first index found outside its parameter in the last evaluation, if any.
  bool outside_ = false;
  std::size_t outside_param_ = 0, outside_dimension_ = 0;
  double outside_index_ = 0;
};

}  // namespace foveal::reference
