#pragma once
// Integer values as sums  c0 + c1 * atom1 + c2 * atom2 ...: what makes q_idx - kv_idx one thing however it was written.
#include <cstdint>
#include <optional>
#include <vector>

#include "score/program.h"

namespace foveal::scoring {

struct Linear {
  struct Term {
    ValueId atom;
    std::int64_t coefficient;  ///< never 0
  };
  std::vector<Term> terms;  ///< by ascending atom
  std::int64_t constant = 0;

  bool is_constant() const { return terms.empty(); }
  bool same_terms(const Linear& other) const;
};

/// a + scale * b; what 64 bits do not hold becomes the largest number that they do.
Linear combine(const Linear& a, const Linear& b, std::int64_t scale);
Linear scaled(const Linear& a, std::int64_t scale);
/// What an integer instruction is by those of its operands (those that it lacks: any); none where it is no sum, but an atom.
std::optional<Linear> sum_of(const Instr& instr, const Linear& a, const Linear& b);
/// Of each value of a program that is an integer. Atoms are values that are no sums, and sums of large numbers.
std::vector<Linear> linear_forms(const Program& program);
/// Few terms and small numbers: such sums do not overflow where they are combined, and doubles hold them.
bool is_small(const Linear& a);
/// Greatest common divisor of the coefficients; 0 for a constant.
std::int64_t content(const Linear& a);

/// Division rounding towards minus infinity, and its remainder (sign of the divisor), of integers; b must not be 0.
std::int64_t floor_divide(std::int64_t a, std::int64_t b);
std::int64_t floor_modulo(std::int64_t a, std::int64_t b);

}  // namespace foveal::scoring
