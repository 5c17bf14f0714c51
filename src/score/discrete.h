#pragma once
// Reals that decide something discrete: an index, a comparison, a rounding. A small error in them changes the result by a whole step, so
// backends compute them exactly as the reference does, without reassociation or approximate functions.
#include "base/id_vector.h"
#include "score/program.h"

namespace foveal::scoring {

/// Does an operation round a real to another type's numbers?
bool rounds_to(Op op);

/// Does an operation map reals to something discrete? By the types of its result and of its operands.
bool is_discrete(Op op, Type result, Type operand);

/// For each value: is it such a real, directly or through others? Values that depend on the score are inexact anyway and never count.
/// beside_score: also reals that are compared with values of the score.
base::IdVector<char> deciding_reals(const Program& program, bool beside_score);

/// For each value: is it a quotient of two values of the score that something discrete is made of? However inexact these are, it may be a
/// whole number, as score / abs(score) is, if the division is exact.
base::IdVector<char> deciding_quotients_of_scores(const Program& program);

}  // namespace foveal::scoring
