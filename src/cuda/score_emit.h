#pragma once
// Score and mask programs as CUDA text: the functions that device/score/score.cuh declares, spliced into every attention kernel.
#include <string>

#include "cuda/score_lines.h"

namespace foveal::cuda {

/// The text of score.cuh for a problem. Depends on expressions, dtypes, and on sizes only where those decide the width of integers or make
/// a clamp superfluous. `lines`: values that the kernel evaluates for whole lines of a tile, none unless it can. pairs_ahead: it loads
/// reads of one element per pair ahead. tanh_ahead: and the tanh of a raw score times a factor.
std::string emit_score(const problem::Problem& problem, const LineValues& lines = {}, bool pairs_ahead = false, bool tanh_ahead = false);

/// How much of the gradients a parameter's reads are stored in, decided together with the text.
enum class GradientStorage {
  none,        ///< no gradient is wanted
  zero,        ///< it is exactly zero
  exact_sums,  ///< exact integer sums (device/score/exact_sum.cuh), converted at the end
  stored,      ///< each element is written once, by the pair that it belongs to
  added,       ///< one address per pair, several (batch, head) add to it: a kernel of its own, in a fixed order
};
GradientStorage gradient_storage(const problem::Problem& problem, std::size_t param);

/// Do the pairs of a problem touch every element of the parameter with this read, and each of them only once for each batch and head?
bool covers_parameter(const problem::Problem& problem, const scoring::TrainableRead& read);

}  // namespace foveal::cuda
