#pragma once
// Properties of a problem's score that decide the tiles and registers of its kernels.
#include <vector>

#include "cuda/score/score_lines.h"
#include "problem/problem.h"

namespace foveal::cuda {

class ScoreForms;  // score_forms.h

/// The score program of the pass.
inline const scoring::Program& program_of(const problem::Problem& p) {
  return p.pass == Pass::forward ? p.score->forward : p.score->backward;
}

/// A read of one element per pair that TMA can load as tiles. Neighbouring keys read contiguous elements of aligned rows. One index is kv
/// plus a constant that starts the box at a multiple of 16 bytes (at least within each chunk of 128 bytes), one is q plus a constant, both
/// in bounds; the others are uniform over the pairs of a head.
struct PairTile {
  scoring::ValueId read;
  std::size_t param;
  int element_bytes;
  int column, row;             ///< dimensions of kv and q
  std::int64_t columns, rows;  ///< their extent: from element 0 to the last that a pair reads
  std::vector<int> others;     ///< the other dimensions of size > 1, at most two
  int keys = 0;                ///< the columns repeat after this many; 0: they do not
  bool stairs = false;         ///< the index rises by at most one per eight keys: one chunk has all elements of a tile
  bool same = false;           ///< ... and is constant over blocks of 16 keys
  bool wraps = false;          ///< the index rises within each chunk only and then starts over, as kv_idx % 64 does
};
/// A gather per pair from a parameter that fits shared memory: the elements that the pairs of one batch and head can read.
struct ReadTable {
  scoring::ValueId read;
  std::int64_t elements, entries;  ///< without and with padding
  int copies = 0;                  ///< replicated, each for every copies-th lane, against bank conflicts
};
/// Entries of a dimension of a table. The last dimension is padded to an odd number where another one varies over
/// pairs, too: lanes that differ in the query only then hit different banks. In forward passes a table indexed by one
/// byte has 256 entries, so that no clamp is needed.
std::int64_t table_row_entries(const problem::Problem& problem, const std::vector<scoring::ValueId>& index, std::size_t dimension,
                               std::int64_t size);
/// Those of the pass's program that are neither line values nor tiles, the smallest first.
std::vector<ReadTable> find_read_tables(const problem::Problem& problem, const std::vector<PairTile>& tiles);

constexpr std::size_t max_pair_tiles = 2;
std::vector<PairTile> find_pair_tiles(const ScoreForms& forms);
/// The same for a kernel whose rows are keys, which also takes repeating columns and stairs.
std::vector<PairTile> find_transposed_pair_tiles(const ScoreForms& forms);

/// Does the score of a forward pass evaluate a special function (MUFU) per pair?
bool evaluates_special_functions(const problem::Problem& problem);
/// Is the score only added to and multiplied? Other scores need more registers.
bool is_light(const problem::Problem& problem);
/// Does what the score reads for each pair differ among the batch entries or heads that share the elements of a trained read's gradient?
bool pair_reads_differ(const problem::Problem& problem, const scoring::TrainableRead& read);
/// Does the score read an element of a parameter per pair? Ignores reads that depend on the symbols `ignored`, and those of `tiles`.
bool reads_pairs(const problem::Problem& problem, std::uint8_t ignored = 0, const std::vector<PairTile>& tiles = {});
/// Does it read such elements that all sequences share? Then the tasks of one head should follow each other.
bool sequences_share_pairs(const problem::Problem& problem);

/// How many offsets a forward pass adds that are outer products of a row value and a column value: tensor cores can add these as extra
/// columns of the head dim (device/tile/extra_columns.cuh). 0: some are not, or too few or too many to pay.
int offsets_as_columns(const problem::Problem& problem, const LineValues& lines);

/// Is the score a softcap: factor * tanh(raw score * factor)?
bool is_softcap(const problem::Problem& problem);
bool is_softcap(const ScoreForms& forms);
/// Is the score of a forward pass the raw score times a uniform factor, plus short offsets that do not depend on it?
bool is_sum(const ScoreForms& forms);
/// Should a forward kernel with these tiles and tables start its accumulators from the offsets, so that the tensor cores add them to q . k?
/// Pays for tables indexed by integers that are read (as byte tiles where they differ per pair); tables indexed by a difference of
/// positions are faster after the product, and other offsets cost the same in both places.
bool offsets_come_first(const ScoreForms& forms, const std::vector<PairTile>& tiles, const std::vector<ReadTable>& tables);
/// Does the score of a forward pass, or the mask, depend on the head?
bool score_depends_on_head(const problem::Problem& problem);
bool mask_depends_on_head(const problem::Problem& problem);
/// Which values of the pass's program are affine in q and kv, with a uniform factor and uniform terms? These take two instructions where
/// they are used, less than loading a line value costs.
base::IdVector<char> affine_values(const ScoreForms& forms);
/// Which values kernels of other types compute in double: reals that decide something discrete (score/discrete.h) and come from float64
/// tensors. They are computed for each pair, not hoisted, as what is hoisted is kept in words of 32 bits.
base::IdVector<char> double_values(const problem::Problem& problem, const scoring::Program& program);
/// Is the score too long to be inlined for each pair of a thread? Then it is a function call: slower, but ptxas finishes in
/// seconds. Kernels with wgmma cannot make calls.
bool is_long(const problem::Problem& problem);
/// Is a factor of the slope of the score_mod applied after the sums (slope_unit)?
bool slope_has_unit(const problem::Problem& problem);

}  // namespace foveal::cuda
