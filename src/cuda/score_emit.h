#pragma once
// Score and mask programs as CUDA text: the functions that device/score/score.cuh declares, spliced into every attention kernel.
#include <string>

#include "cuda/read_facts.h"
#include "cuda/row_reads.h"
#include "cuda/score_facts.h"
#include "cuda/score_lines.h"

namespace foveal::cuda {

/// What a kernel has before it evaluates the score of a pair.
struct Ahead {
  LineValues lines{};                          ///< it evaluates these for whole lines of a tile
  std::vector<scoring::ValueId> row_values{};  ///< and these for its rows
  bool pairs = false;                          ///< it loads reads of one element per pair ahead
  std::vector<PairTile> tiles{};               ///< those that it gets as tiles instead
  std::vector<ReadTable> tables{};             ///< reads from tables in shared memory
  bool tanh = false;                           ///< it evaluates the tanh of a raw score times a factor, four pairs at a time
  std::vector<ReadBins> bins{};                ///< of each trained read; empty: of none
  std::vector<RowRead> rows{};                 ///< trained reads that a kernel of their own sums
  bool sums_rows = false;                      ///< which is this one
  bool band = false;                           ///< it asks no program which pairs are kept: windows of any size share it
  bool raw_offsets = false;     ///< it can add the offsets of a sum to raw scores (kOffsetsInScores), where these are many instructions
  bool offsets_first = false;   ///< its scores begin as the offsets of a sum (offsets_come_first)
  bool offset_columns = false;  ///< its tensor cores add the offsets of a sum (offsets_as_columns)
  bool several_heads = false;   ///< its tiles have pairs of several heads: only what is the same for these leaves the loops over pairs
};

/// The text of emit.cuh for a problem. Depends on expressions, dtypes, on sizes only where those decide the width of integers or make
/// a clamp superfluous, and on strides only where they are 0 or 1.
std::string emit_score(const problem::Problem& problem, const Ahead& ahead = {});
/// Can some index of a kept pair leave its parameter, as far as is known without data?
bool reads_may_leave(const problem::Problem& problem);
/// What device/kernels/outside_reads.cuh needs besides: functions that find such a read at a pair,
///   constexpr bool kIndexReadsScore
///   bool mask_reads_outside(at, args, read), score_reads_outside(score, at, args, read)
std::string emit_outside_reads(const problem::Problem& problem);
/// The same for kernels that know rows, not pairs: of a program the sink alone, so that one binary serves all scores and masks.
/// of_gradient: only if that of the sink is wanted.
std::string emit_sink(const problem::Problem& problem, bool of_gradient);

}  // namespace foveal::cuda
