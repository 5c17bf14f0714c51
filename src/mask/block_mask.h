#pragma once
// Block masks by interval evaluation: for a mask program and a tiling, the runs of tiles that each tile row visits. No S x S work.
#include <cstdint>
#include <span>
#include <vector>

#include "score/interval.h"
#include "score/program.h"

namespace foveal::mask {

/// Consecutive tiles [begin, end) of one tile row. Tiles in no run are empty: the mask keeps no pair of them.
struct Run {
  std::int32_t begin, end;
  bool full;  ///< the mask keeps every pair; otherwise it must be evaluated
};

struct Tiling {
  std::int64_t seqlen_q, seqlen_kv;
  std::int32_t block_q, block_kv;
  std::int64_t q_offset = 0, kv_offset = 0;  ///< global position = local + offset
  std::int64_t whole_q = 0, whole_kv = 0;    ///< the symbols seqlen_q and seqlen_kv, where this is a part of a sequence; 0: as above
};

/// Rows of runs in compressed form; `transposed` has one row per kv tile and runs along q (for the dk/dv pass).
struct BlockMask {
  Tiling tiling;
  bool transposed = false;
  std::vector<std::int64_t> row_begin;  ///< rows + 1
  std::vector<Run> runs;
  std::int64_t full = 0, partial = 0, empty = 0;  ///< tiles
};

/// Receives runs as they are found: those of one row in ascending order; adjacent ones may be appended separately.
class RunSink {
 public:
  virtual void append(std::int64_t row, const Run& run) = 0;

 protected:
  ~RunSink() = default;
};

/// A mask program prepared for repeated classification without allocations.
class Classifier {
 public:
  explicit Classifier(const scoring::Program& mask) : mask_(mask) {}
  std::size_t scratch_size() const { return mask_.size(); }
  /// See classify(). The program is not empty. scratch: scratch_size() of them.
  void operator()(const Tiling& tiling, std::int64_t batch, std::int64_t head, const scoring::ReadRanges& reads,
                  std::span<scoring::Interval> scratch, RunSink& sink) const;

 private:
  scoring::IntervalProgram mask_;
};

/// Classifies tiles by interval evaluation, refining from large areas to tiles, for one batch and head. `reads` bounds what a parameter
/// read can return over a range of indices; an unknown read makes its tile partial. Sound: tiles classified as full or empty are. An empty
/// program makes all tiles full. Time and memory are proportional to the tiles on the borders of the mask.
BlockMask classify(const scoring::Program& mask, const Tiling& tiling, std::int64_t batch, std::int64_t head,
                   const scoring::ReadRanges& reads);
BlockMask transpose(const BlockMask& mask);

}  // namespace foveal::mask
