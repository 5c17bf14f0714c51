#pragma once
// Score and mask programs as CUDA text: the functions that device/score/score.cuh declares, spliced into every attention kernel.
#include <string>

#include "cuda/score_lines.h"

namespace foveal::cuda {

/// A read of one element per pair that the copy engine can bring as tiles: of 16 or 32 bits, with the elements of neighbouring keys side by
/// side and aligned rows. One index grows with kv, from a multiple of 16 bytes on (a box that begins elsewhere stops the kernel), one with
/// q, both stay inside the parameter, and the others are the same for all pairs of a head.
struct PairTile {
  scoring::ValueId read;
  std::size_t param;
  int element_bytes;
  int column, row;             ///< dimensions of kv and q
  std::int64_t columns, rows;  ///< how many of them some pair touches, from the first element on
  std::vector<int> others;     ///< dimensions in which the index is not always the same element, at most two
};
/// A read at a place that differs from pair to pair, of a parameter that may stand in shared memory: the elements that pairs of one batch
/// and head can touch.
struct ReadTable {
  scoring::ValueId read;
  std::int64_t entries;
  int copies = 0;  ///< for one lane in so many each
};
/// Those of the pass's program that no line of a tile shares and no tile brings, the smallest first.
std::vector<ReadTable> find_read_tables(const problem::Problem& problem, const std::vector<PairTile>& tiles);

/// Where the terms of a trained read are summed in shared memory (device/tile/read_bins.cuh).
struct ReadBins {
  int entries = 0, copies = 0;  ///< elements, or those of a window; of each, for one lane in so many. 0: summed elsewhere
};
constexpr std::size_t max_pair_tiles = 2;
/// Those of the pass's program.
std::vector<PairTile> find_pair_tiles(const problem::Problem& problem);

/// What a kernel has before it evaluates the score of a pair.
struct Ahead {
  LineValues lines{};               ///< it evaluates these for whole lines of a tile
  bool pairs = false;               ///< it loads reads of one element per pair ahead
  std::vector<PairTile> tiles{};    ///< those that it gets as tiles instead
  std::vector<ReadTable> tables{};  ///< reads from tables in shared memory
  bool tanh = false;                ///< it evaluates the tanh of a raw score times a factor, four pairs at a time
  std::vector<ReadBins> bins{};     ///< of each trained read; empty: of none
  bool several_heads = false;       ///< its tiles have pairs of several heads: only what is the same for these leaves the loops over pairs
};

/// Is the score the tanh of the raw score times a factor, but for another factor?
bool is_capped(const problem::Problem& problem);

/// Is the score of a forward pass the raw score times a factor plus an offset that does not depend on it?
bool is_sum(const problem::Problem& problem);

/// Is the score of a forward pass, or the mask, another one for each head?
bool score_depends_on_head(const problem::Problem& problem);
bool mask_depends_on_head(const problem::Problem& problem);

/// Is the gradient of a read the sum of k . dk over keys? It is where its factor is the raw score and dk takes in what the score is
/// multiplied with, as in score * t[head]: the sum over pairs of dS_ij (q_i . k_j) is that over keys of k_j . (sum over queries of dS_ij
/// q_i), and no pair has a term of its own.
bool follows_from_dk(const problem::Problem& problem, const scoring::TrainableRead& read);

/// For each value of the pass's program: is it a multiple of a sum of q, kv and what is the same for all pairs? A kernel that steps through
/// pairs needs two instructions for it, shared along diagonals: not worth another warp's time.
std::vector<bool> straight_values(const problem::Problem& problem);

/// Is the score's text too long to stand in a kernel once for each pair that a thread holds? Then it is called, which takes longer than the
/// text itself but keeps the assembler's time in seconds; kernels around wgmma cannot hold calls.
bool is_long(const problem::Problem& problem);

/// The text of score.cuh for a problem. Depends on expressions, dtypes, on sizes only where those decide the width of integers or make
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
/// Does the slope of the score_mod leave a factor to what is summed up with it (slope_unit)?
bool slope_has_unit(const problem::Problem& problem);

/// How much of the gradients a parameter's reads are stored in, decided together with the text.
enum class GradientStorage {
  none,        ///< no gradient is wanted
  zero,        ///< it is exactly zero
  exact_sums,  ///< exact integer sums (device/score/exact_sum.cuh), converted at the end
  stored,      ///< each element is written once, by the pair that it belongs to
  added,       ///< one address per pair, several (batch, head) add to it: a kernel of its own, in a fixed order
};
GradientStorage gradient_storage(const problem::Problem& problem, std::size_t param);

/// How many elements of the parameter the pairs of one batch and head can touch with this read, which follows no line of a tile; 0 where
/// its terms are summed otherwise.
std::int64_t bin_entries(const problem::Problem& problem, const scoring::TrainableRead& read);

/// Do the pairs of a tile touch elements that lie together, so that a window of the parameter can follow the tiles? Where indices are sums
/// of what positions are alone, and there are not many elements for each key.
bool bins_lie_together(const problem::Problem& problem, const scoring::TrainableRead& read);

/// Do the pairs of a problem touch every element of the parameter with this read, and each of them only once for each batch and head?
bool covers_parameter(const problem::Problem& problem, const scoring::TrainableRead& read);

}  // namespace foveal::cuda
