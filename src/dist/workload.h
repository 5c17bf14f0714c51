#pragma once
// What is dealt: sequences with the work of each row of tiles and the keys it needs, both from the mask by interval evaluation.
#include <cstdint>
#include <memory>
#include <vector>

#include "dist/layout.h"
#include "mask/block_mask.h"
#include "problem/problem.h"

namespace foveal::dist {

/// Tokens of a chunk.
constexpr std::int64_t most_unit = 1 << 20;

/// Costs in tenths of a full tile of one head: the same integers on every machine.
struct Cost {
  static constexpr std::int64_t full = 10;     ///< a tile that needs no mask
  static constexpr std::int64_t partial = 11;  ///< one that does
  static constexpr std::int64_t row = 15;      ///< prologue and epilogue of a row of tiles
};

/// Keys that some row of a range of queries needs. full: every row needs all of them, and no mask.
struct KeyRun {
  Range kv;
  bool full = false;
};

/// One sequence under the mask, in tiles of unit x unit: for all heads and, where rows of a batch share the axis, for all of these.
class SequenceWork {
 public:
  SequenceWork(std::int64_t seqlen_q, std::int64_t seqlen_kv, std::int64_t unit, std::vector<mask::BlockMask> variants,
               std::int64_t repeats);

  std::int64_t unit() const { return unit_; }
  std::int64_t seqlen_q() const { return seqlen_q_; }
  std::int64_t seqlen_kv() const { return seqlen_kv_; }
  std::int64_t rows() const { return static_cast<std::int64_t>(before_.size()) - 1; }  ///< of tiles
  /// Of these queries, in Cost units, over all heads. The range is aligned to tiles, or ends with the sequence.
  std::int64_t work(Range q) const;
  std::int64_t total() const { return before_.back(); }
  /// What these queries need, in ascending order.
  std::vector<KeyRun> keys(Range q) const;
  std::int64_t full() const { return full_; }        ///< tiles, over all heads
  std::int64_t partial() const { return partial_; }  ///< likewise

 private:
  std::int64_t unit_, seqlen_q_, seqlen_kv_;
  std::vector<mask::BlockMask> variants_;
  std::vector<std::int64_t> before_;  ///< work of all rows of tiles before one
  std::int64_t full_ = 0, partial_ = 0;
};

/// Everything that a plan depends on, apart from ranks and their links.
struct Workload {
  std::vector<std::int64_t> lengths_q, lengths_kv;  ///< of the sequences of the axis
  std::vector<std::shared_ptr<const SequenceWork>> sequences;
  std::int64_t batch = 1;  ///< rows that share the axis
  std::int64_t heads_q = 1, heads_kv = 1, head_dim = 64, head_dim_v = 64;
  std::int64_t element_bytes = 2, statistic_bytes = 4;
  std::int64_t unit = 128;
  bool mask_reads_unknown = false;  ///< the mask reads a parameter without data: tiles that depend on it count as partial
  std::string text;                 ///< of the problem

  bool self_attention() const { return lengths_q == lengths_kv; }
  /// Of queries of one sequence, in tiles of `unit`, even where the sequence was classified in larger tiles.
  std::int64_t work(std::int32_t sequence, Range q) const {
    const SequenceWork& of_one = *sequences[static_cast<std::size_t>(sequence)];
    const std::int64_t ratio = of_one.unit() / unit;
    return of_one.work(q) * ratio * ratio;
  }
};

/// lengths: of packed sequences, empty otherwise. params: the data that masks read; views without data are allowed. unit: tokens of a tile
/// side. A mask with many partial tiles (random documents) is classified in larger tiles.
Workload make_workload(const problem::Problem& problem, const std::vector<std::pair<std::int64_t, std::int64_t>>& lengths,
                       const std::vector<TensorView>& params, std::int64_t unit = 128);

}  // namespace foveal::dist
