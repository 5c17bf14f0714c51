#pragma once
// What a problem's score asks of a kernel: facts by which tiles and their registers are chosen.
#include <vector>

#include "cuda/score_lines.h"
#include "problem/problem.h"

namespace foveal::cuda {

/// A read of one element per pair that TMA can load as tiles: of 16 or 32 bits, with the elements of neighbouring keys side by
/// side and aligned rows. One index grows with kv, from a multiple of 16 bytes on (a box that begins elsewhere stops the kernel), at least
/// inside each chunk of 128 bytes, one with q, both stay inside the parameter, and the others are the same for all pairs of a head.
struct PairTile {
  scoring::ValueId read;
  std::size_t param;
  int element_bytes;
  int column, row;             ///< dimensions of kv and q
  std::int64_t columns, rows;  ///< how many of them some pair touches, from the first element on
  std::vector<int> others;     ///< dimensions in which the index is not always the same element, at most two
  int keys = 0;                ///< so many columns serve all of a tile, whose others have the same elements; 0: all do
  bool stairs = false;         ///< the index rises by one at the most with each eight keys: a chunk has all elements of a tile
  bool same = false;           ///< ... and is the same for blocks of 16 keys
  bool wraps = false;          ///< the index of kv grows so inside each chunk of a tile only, and begins anew, as kv_idx % 64 does
};
/// A read at a place that differs from pair to pair, of a parameter that may stand in shared memory: the elements that pairs of one batch
/// and head can touch.
struct ReadTable {
  scoring::ValueId read;
  std::int64_t elements, entries;  ///< the latter with those of padding
  int copies = 0;                  ///< for one lane in so many each
};
/// Of how many entries of a table one index of a dimension is, of those behind it. The last one is padded to an odd number where others differ between pairs,
/// too: lanes whose queries differ, but not their keys, then find their entries in other banks.
/// In forward passes a table that a byte is the one index of has 256, so that the byte needs no clamp.
std::int64_t table_row_entries(const problem::Problem& problem, const std::vector<scoring::ValueId>& index, std::size_t dimension,
                               std::int64_t size);
/// Those of the pass's program that no line of a tile shares and no tile brings, the smallest first.
std::vector<ReadTable> find_read_tables(const problem::Problem& problem, const std::vector<PairTile>& tiles);

constexpr std::size_t max_pair_tiles = 2;
/// Those of the pass's program.
std::vector<PairTile> find_pair_tiles(const problem::Problem& problem);
/// The same for a kernel whose rows are keys: what repeats is loaded once for a tile, and stairs are tiles, too.
std::vector<PairTile> find_transposed_pair_tiles(const problem::Problem& problem);

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

/// How many offsets a forward pass adds, each the product of a value of the row and one of the walk, which tensor cores can add as columns beside the head dim
/// (device/tile/extra_columns.cuh). 0: they are others, or one alone, or too many.
int offsets_as_columns(const problem::Problem& problem, const LineValues& lines);

/// Is the score the tanh of the raw score times a factor, but for another factor?
bool is_capped(const problem::Problem& problem);
/// Is the score of a forward pass the raw score times a factor plus an offset that does not depend on it and takes few instructions?
bool is_sum(const problem::Problem& problem);
/// Can a forward kernel that has some reads in tables and the others of pairs as tiles know all that is added to a score before the product q . k is there? That is
/// then added to the rest by the tensor cores. For what is read from tables where integers say, which tiles bring as bytes if they are of pairs: other offsets take as
/// many instructions in either place, and tables at a difference of places are quicker behind the product.
bool offsets_come_first(const problem::Problem& problem, const std::vector<PairTile>& tiles, const std::vector<ReadTable>& tables);
/// Is the score of a forward pass, or the mask, another one for each head?
bool score_depends_on_head(const problem::Problem& problem);
bool mask_depends_on_head(const problem::Problem& problem);
/// For each value of the pass's program: is it a multiple of a sum of q, kv and what is the same for all pairs? A kernel that steps through
/// pairs needs two instructions for it, shared along diagonals: not worth another warp's time.
std::vector<bool> straight_values(const problem::Problem& problem);
/// Is the score's text too long to stand in a kernel once for each pair that a thread holds? Then it is called, which takes longer than the
/// text itself but keeps the assembler's time in seconds; kernels around wgmma cannot hold calls.
bool is_long(const problem::Problem& problem);
/// Does the slope of the score_mod leave a factor to what is summed up with it (slope_unit)?
bool slope_has_unit(const problem::Problem& problem);

}  // namespace foveal::cuda
