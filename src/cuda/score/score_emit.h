#pragma once
// Score and mask programs as CUDA text: the functions that device/score/score.cuh declares, spliced into every attention kernel.
#include <string>

#include "cuda/score/planned_read.h"
#include "cuda/score/row_reads.h"
#include "cuda/score/score_facts.h"
#include "cuda/score/score_lines.h"

namespace foveal::cuda {

/// What a kernel computes or loads before it evaluates the score of a pair.
struct Ahead {
  LineValues lines{};                          ///< evaluated once per line of a tile
  std::vector<scoring::ValueId> row_values{};  ///< evaluated once per row, kept in registers
  bool pairs = false;                          ///< reads of one element per pair are prefetched
  std::vector<PairTile> tiles{};               ///< those of them that TMA loads as tiles
  std::vector<ReadTable> tables{};             ///< reads from tables in shared memory
  bool tanh = false;                           ///< the tanh of a scaled raw score is evaluated for four pairs at a time
  std::vector<ReadBins> bins{};                ///< of each trained read, or empty
  std::vector<PlannedRead> reads{};            ///< trained reads and who sums them; empty: this kernel sums all or none
  std::vector<RowRead> rows{};                 ///< trained reads that this kernel sums as tables for each query
  bool band = false;                           ///< the mask is a band given by arguments, so that windows of any size share the kernel
  bool raw_offsets = false;                    ///< long offsets of a sum may be added to raw scores (kOffsetsInScores)
  bool offsets_first = false;                  ///< accumulators start from the offsets of a sum (offsets_come_first)
  bool offset_columns = false;                 ///< tensor cores add the offsets of a sum (offsets_as_columns)
  bool several_heads = false;  ///< GQA packing: only what is the same for all heads of a group may be hoisted out of the loops over pairs
};

/// The text of emit.cuh for a problem. It depends on expressions and dtypes; on sizes only where they decide the width of an integer or
/// make a clamp unnecessary; on strides only where they are 0 or 1.
std::string emit_score(const problem::Problem& problem, const Ahead& ahead = {});
/// May an index of a kept pair be out of bounds, as far as is known without data?
bool reads_may_leave(const problem::Problem& problem);
/// What device/kernels/outside_reads.cuh needs in addition: functions that find such a read at a pair,
///   constexpr bool kIndexReadsScore
///   bool mask_reads_outside(at, args, read), score_reads_outside(score, at, args, read)
std::string emit_outside_reads(const problem::Problem& problem);
/// The text for kernels over rows, which need only the sink, so that one binary serves all scores and masks.
/// of_gradient: only where the gradient of the sink is wanted.
std::string emit_sink(const problem::Problem& problem, bool of_gradient);

}  // namespace foveal::cuda
