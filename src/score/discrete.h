#pragma once
// Reals of which something discrete is made: an index, a comparison, a rounding. A small error there is a wrong answer, not a small one, so back
// ends compute them as the reference does, with nothing rearranged or approximated.
#include "base/id_vector.h"
#include "score/program.h"

namespace foveal::scoring {

/// Of each value: is it such a real, directly or by others like it? Values of the score are as inexact as the score, and never count.
/// beside_score: also what is compared with values of the score.
base::IdVector<char> deciding_reals(const Program& program, bool beside_score);

}  // namespace foveal::scoring
