#pragma once
// The two forms of the forward pass over packed keys: what a tile of queries keeps while it runs, and its visits to blocks of keys.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/forward_pass.h"
#include "cpu/packed_keys.h"
#include "cpu/row_spans.h"
#include "cpu/scored_blocks.h"

namespace foveal::cpu {

struct PackedMemory : CallMemory {
  PackedKeys::Memory keys;
};

using PackedCall = ForwardCallOf<float, PackedMemory>;

struct PackedTile : RunWalk {
  void* q;
  float *acc, *max, *sums;
};

struct PackedWorker : WorkerOf<PackedTile> {
  RowSpans::Memory spans;
  void *scratch, *key_block;  ///< key_block: a copy of a block that spans pages
};

/// Dot products, and masks that are ranges of keys: rows of queries. Maxima are in base 2, sums vectors of parts for each row.
class ByRows {
 public:
  static constexpr const char* path = "forward.rows";
  /// Below, maxima in base 2 are off by at most 1: exponents stay small, and the row sums absorb the difference.
  static constexpr float max_exponent = 16777216;

  explicit ByRows(const Setup<float>& setup) : s_(setup), ops_(setup.ops.packed->forward), spans_(setup) {}

  const PackedLayout& layout() const { return ops_.layout; }
  std::size_t sums() const { return std::size_t{2 * 16} * static_cast<std::size_t>(ops_.layout.rows); }
  void lay_out(Layout<PackedWorker>& worker) const {
    worker.part(&PackedWorker::spans, RowSpans::layout());
    worker.bytes(&PackedWorker::scratch, ops_.scratch_bytes(s_.geometry.block_kv));
  }

  void start_with_sink(PackedTile& state, int lane, double logit) const {
    state.max[lane] = static_cast<float>(logit * ScoreScale<float>::kLog2e);
    state.sums[lane * 16] = 1;
  }
  void visit(const PackedCall& call, const Sequence& sequence, const void* k, const void* v, std::int32_t begin, std::int32_t end,
             PackedTile& state, PackedWorker& worker) const {
    ForwardVisit visit{.q = state.q,
                       .k = k,
                       .v = v,
                       .acc = state.acc,
                       .max = state.max,
                       .sums = state.sums,
                       .scratch = worker.scratch,
                       .multiplier = s_.scale.log2,
                       .dim = s_.dim,
                       .dim_v = s_.dim_v,
                       .block = s_.geometry.block_kv};
    spans_.visit(ops_, sequence, call.data, begin, end, state, worker.spans, worker.tape_scratch, visit);
  }
  void add_sums(const PackedTile& state, float* sum) const { ops_.add_sums(state.sums, sum); }
  double lse(float max, float sum) const {
    return (static_cast<double>(max) + std::log2(static_cast<double>(sum))) * ScoreScale<float>::kLn2;
  }
  /// False where a maximum is too large for exponents computed by one fused multiply-subtract.
  bool in_range(const PackedTile& state) const {
    return std::all_of(state.max, state.max + state.tile->lanes(),
                       [](float max) { return max == -std::numeric_limits<float>::max() || !(std::abs(max) > max_exponent); });
  }

 private:
  const Setup<float>& s_;
  const PackedForwardOps& ops_;
  const RowSpans spans_;
};

/// Scores and masks by programs: S^T, lanes are queries. Maxima are in the numbers of a tile, which are scores where there is a score
/// program.
class ByPrograms {
 public:
  static constexpr const char* path = "forward.scored";

  explicit ByPrograms(const Setup<float>& setup) : s_(setup), ops_(setup.ops.packed->scored_forward), blocks_(setup) {}

  const PackedLayout& layout() const { return ops_.layout; }
  std::size_t sums() const { return static_cast<std::size_t>(ops_.layout.rows); }
  void lay_out(Layout<PackedWorker>& worker) const { worker.bytes(&PackedWorker::scratch, ops_.scratch_bytes); }

  void start_with_sink(PackedTile& state, int lane, double logit) const {
    state.max[lane] = static_cast<float>(logit / natural());
    state.sums[lane] = 1;
  }
  void visit(const PackedCall& call, const Sequence& sequence, const void* k, const void* v, std::int32_t begin, std::int32_t end,
             PackedTile& state, PackedWorker& worker) const {
    const ScoredVisit visit{.q = state.q,
                            .k = k,
                            .v = v,
                            .acc = state.acc,
                            .max = state.max,
                            .sum = state.sums,
                            .scratch = worker.scratch,
                            .log2 = s_.scale.log2,
                            .dim = s_.dim,
                            .dim_v = s_.dim_v};
    blocks_.visit(ops_, sequence, call.data, begin, end, state, worker.tape_scratch, visit);
  }
  void add_sums(const PackedTile& state, float* sum) const { std::copy_n(state.sums, sums(), sum); }
  double lse(float max, float sum) const { return static_cast<double>(max) * natural() + std::log(static_cast<double>(sum)); }
  bool in_range(const PackedTile&) const { return true; }

 private:
  /// A number of the tile times this is a score, as the exponentials have it.
  double natural() const { return s_.tape.has_score() ? 1 : static_cast<double>(s_.scale.log2) * ScoreScale<float>::kLn2; }

  const Setup<float>& s_;
  const ScoredForwardOps& ops_;
  const ScoredBlocks blocks_;
};

}  // namespace foveal::cpu
