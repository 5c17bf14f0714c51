#pragma once
// Score and mask programs on CPU tiles. A Tape is compiled once per plan, is immutable and shared by all threads; the kernels call it once per
// tile of scores, between the matmuls. Values that are uniform, per lane (query), per key or per diagonal (kv - q) are hoisted into small
// arrays of their own, and only the rest runs over the whole tile.
//
// Tiles are S^T: Real tile[keys][ld], one row per key, one lane per query. The lanes of a tile are (query head, query) pairs of one batch
// row, in any order; runs of 16 lanes that share a head and have consecutive queries are fast.
//
// Integers have 32 bits where the elements of the parameters show that they suffice; otherwise those that may overflow have 64. Positions must
// stay below 2^31.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpu/tape_code.h"
#include "foveal/attention.h"
#include "problem/problem.h"

namespace foveal::cpu {

class Tape {
 public:
  /// `target`: scalar, avx2, avx512, avx512bf16 or amx (the last two run the avx512 tape).
  Tape(const problem::Problem& problem, const std::string& target);
  ~Tape();
  Tape(Tape&&) noexcept;
  /// Why no tape can run the problem; nullopt if one can.
  static std::optional<std::string> refuses(const problem::Problem& problem);

  bool has_score() const { return has_score_; }  ///< a score_mod: apply() on every tile
  bool has_mask() const { return has_mask_; }    ///< a mask: apply() on every partial tile
  /// The backward changes ds or accumulates parameter gradients: differentiate() on every tile.
  bool has_backward() const { return has_backward_; }
  /// differentiate() reads the raw dot products: keep them beside the scores. Otherwise pass null.
  bool backward_needs_dots() const { return backward_needs_dots_; }
  /// The mask is, for each lane, one range of keys: lane_ranges() gives it (causal, window, prefix, padding and their intersections).
  bool mask_is_ranges() const { return mask_is_ranges_; }

  /// Scratch per thread for tiles of up to `max_keys` by `max_ld`, 64-byte aligned.
  std::size_t scratch_bytes(int max_keys, int max_ld) const;

  /// The bound parameters of one run, in `memory` (data_bytes(), aligned to 64), shared by all threads.
  std::size_t data_bytes() const;
  TapeData bind(const std::vector<TensorView>& params, void* memory) const;

  /// Forward; for has_score(), or partial tiles with has_mask(). dots: raw q . k, unscaled. With a score_mod, scores = score_mod(dots *
  /// scale); without one, scores = dots, still unscaled. Where `partial`, pairs that the mask drops become -inf.
  /// dots and scores may be the same tile; both have frame.ld. lane_max: when not null, raised to the largest score of each lane
  /// (frame.padded() of them).
  template <class Real>
  void apply(const TileFrame& frame, const TapeData& data, const Real* dots, Real* scores, bool partial, Real* lane_max,
             void* scratch) const;

  /// Backward. ds holds P * (dP - delta), exact zeros where masked and in padded lanes; it becomes d loss / d (dots * scale): the kernel
  /// applies the scale when it writes dq and dk. With `grads`, every trainable read accumulates. Where ds is 0 nothing is propagated,
  /// whatever the derivative is.
  template <class Real>
  void differentiate(const TileFrame& frame, const TapeData& data, const Real* dots, Real* ds, const TapeGrads* grads, void* scratch) const;

  /// For mask_is_ranges(): lane i attends to rows first[i] <= row < last[i] of this tile (clamped to 0..keys); frame.padded() of each.
  void lane_ranges(const TileFrame& frame, const TapeData& data, std::int32_t* first, std::int32_t* last, void* scratch) const;

  /// An out-of-range read at an unmasked pair.
  struct IndexFault {
    int param, dimension;
    std::int64_t index;
    std::int32_t batch, head, q_idx, kv_idx;
  };
  /// Attention::checked: evaluates every unmasked pair of the valid lanes, in double, one by one. dots may be null where no index reads the
  /// score.
  template <class Real>
  std::optional<IndexFault> find_fault(const TileFrame& frame, const TapeData& data, const Real* dots) const;
  /// The message of an Error for a fault.
  std::string describe(const IndexFault& fault) const;

  /// One line per instruction, for tests and explain().
  std::string text() const;

 private:
  struct Prepared;
  std::unique_ptr<Prepared> prepared_;
  bool has_score_ = false, has_mask_ = false, has_backward_ = false, backward_needs_dots_ = false, mask_is_ranges_ = false;
};

/// Multiplies a tile, and a second one if given (so that the bits are made once), by keep / (1 - p). Forward: P after its row sums.
/// Backward: dP, and the P that goes into dv.
template <class Real>
void apply_dropout(const std::string& target, const TileFrame& frame, const TileDropout& dropout, Real* tile, Real* second);

/// How parameter gradients are accumulated: deterministic for any number of threads, in O(parameter) memory. The backward's tasks are
/// (batch, kv head, share) triples, share < shares, where shares depends on the shape only. Every task belongs to one partition; the tasks
/// of a partition must run one after the other in increasing (batch, kv head, share); partitions may run at once. Each partition adds into
/// accumulators of its own, or, where the partitions of a parameter touch different elements (reads with `head` or `batch` as an index),
/// all into one. finish() adds the partitions in order into the caller's tensors.
class ParamGradPlan {
 public:
  ParamGradPlan() = default;
  ParamGradPlan(const problem::Problem& problem, std::int64_t shares);

  bool empty() const { return accumulators_.empty(); }  ///< nothing to accumulate; finish() still writes the exact zeros
  std::int64_t partitions() const { return batch_parts_ * head_parts_ * share_parts_; }
  std::int64_t partition(std::int64_t batch, std::int64_t kv_head, std::int64_t share) const;
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  std::string reduction() const;  ///< for explain(): "rel_bias: diagonal, 12 partitions"

  /// Before the tasks, for each partition, and after the tasks. dparams: like Problem::params; absent views and the sink's are left alone.
  void clear(void* workspace, const std::vector<TensorView>& dparams, const Executor& executor) const;
  TapeGrads grads(void* workspace, const std::vector<TensorView>& dparams, std::int64_t partition) const;
  void finish(const void* workspace, const std::vector<TensorView>& dparams, const Executor& executor) const;

 private:
  struct Accumulator {
    int param;
    std::int64_t numel;
    bool wide;                 ///< doubles; otherwise floats
    bool direct;               ///< one copy, and it is the caller's tensor itself
    bool per_batch, per_head;  ///< the partitions of different batches (heads) need accumulators of their own
    std::int64_t copies;
    std::size_t offset, bytes;  ///< of the first copy; of one copy
  };
  std::int64_t copy_of(const Accumulator& accumulator, std::int64_t partition) const;

  std::vector<Accumulator> accumulators_;
  std::vector<int> zeros_;  ///< parameters whose gradient is exactly zero
  std::vector<std::string> texts_;
  std::int64_t batch_ = 1, heads_kv_ = 1, shares_ = 1;
  /// Each index is cut into this many runs; a partition is one run of each.
  std::int64_t batch_parts_ = 1, head_parts_ = 1, share_parts_ = 1;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace foveal::cpu
