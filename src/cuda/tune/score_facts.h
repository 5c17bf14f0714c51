#pragma once
// What a problem's score asks of a kernel: facts by which tiles and their registers are chosen.
#include <vector>

#include "cuda/score_emit.h"
#include "problem/problem.h"

namespace foveal::cuda {

/// Does the score of a forward pass need a special function for each pair?
bool evaluates_special_functions(const problem::Problem& problem);
/// Is the score added to and multiplied only? Other scores need registers of their own.
bool is_light(const problem::Problem& problem);
/// Does the score read an element of a parameter for each pair? besides: reads that depend on these do not count, nor do those among
/// `tiles`.
bool reads_pairs(const problem::Problem& problem, std::uint8_t besides = 0, const std::vector<PairTile>& tiles = {});
/// Does the score read parameters with an element for each pair that several sequences share? Tasks of one head then follow each other.
bool sequences_share_pairs(const problem::Problem& problem);
/// Does a value of a program come from another one?
bool comes_from(const scoring::Program& program, scoring::ValueId value, scoring::ValueId source);

/// Trained reads that are summed along such lines.
int reads_along(const problem::Problem& problem, scoring::Reduction lines);
/// Trained reads whose terms other warps sum up.
int staged_reads(const problem::Problem& problem);
/// Is its gradient added up by a kernel for elements of pairs?
bool is_added_later(const problem::Problem& problem, const scoring::TrainableRead& read);
/// Has some trained read terms of pairs to sum up?
bool has_terms(const problem::Problem& problem);
/// Trained reads whose terms a thread knows together with the probability and must keep.
int early_reads(const problem::Problem& problem);

}  // namespace foveal::cuda
