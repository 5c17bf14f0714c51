#pragma once
// Linear forms of integers, c0 + c1 * atom1 + c2 * atom2 + ...: the normal form of q_idx - kv_idx however it was written. Atoms are values
// of one program, or symbols (in_symbols), which programs share.
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
  std::vector<Term> terms;  ///< ascending by atom
  std::int64_t constant = 0;

  bool is_constant() const { return terms.empty(); }
  bool same_terms(const Linear& other) const;
  /// The coefficient of an atom, which may be 0.
  std::int64_t of(ValueId atom) const;
  Linear without(ValueId atom) const;
};

/// a + scale * b; numbers that overflow become the largest 64-bit number.
Linear combine(const Linear& a, const Linear& b, std::int64_t scale);
Linear scaled(const Linear& a, std::int64_t scale);
inline Linear negated(const Linear& a) { return scaled(a, -1); }
/// The linear form of an integer instruction from those of its operands (ignored beyond its arity); none if it is an atom.
std::optional<Linear> sum_of(const Instr& instr, const Linear& a, const Linear& b);
/// The linear form of each integer value of a program. Values that are not sums, sums with many terms or large numbers, and values that are
/// `whole` (empty: none are) are atoms.
base::IdVector<Linear> linear_forms(const Program& program, const base::IdVector<char>& whole = {});
/// A sum of symbols alone, with an Op for each atom; none for others.
std::optional<Linear> in_symbols(const Program& program, const Linear& sum);
/// sum <= 0 as sums that are all <= 0: |x| + rest is x + rest and -x + rest. forms: of the values of the program.
std::vector<Linear> without_abs(const Program& program, const base::IdVector<Linear>& forms, const Linear& sum);
/// At most this many terms, and no number of larger magnitude.
bool is_within(const Linear& a, std::size_t terms, std::int64_t magnitude);
/// Combinations of such sums do not overflow, and doubles hold them exactly.
inline bool is_small(const Linear& a) { return is_within(a, 32, (std::int64_t{1} << 40) - 1); }
/// Greatest common divisor of the coefficients; 0 for a constant.
std::int64_t content(const Linear& a);

/// Quotient rounded towards minus infinity, and the remainder, which has the divisor's sign. b must not be 0.
std::int64_t floor_divide(std::int64_t a, std::int64_t b);
std::int64_t floor_modulo(std::int64_t a, std::int64_t b);

}  // namespace foveal::scoring
