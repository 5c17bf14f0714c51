#pragma once
// Score and mask programs on CPU tiles. A Tape is compiled once per plan, is immutable and shared by all threads; the kernels call it once
// per tile of scores, between the matmuls. Values that are uniform, per lane (query), per key or per diagonal (kv - q) are hoisted into
// small arrays of their own, and only the rest runs over the whole tile.
//
// Tiles are S^T: Real tile[keys][ld], one row per key, one lane per query. The lanes of a tile are (query head, query) pairs of one batch
// row, in any order; runs of 16 lanes that share a head and have consecutive queries are fast.
//
// Integers have 32 bits where the elements of the parameters show that they suffice; otherwise those that may overflow have 64.
// Positions are at most 2^30 (cpu_backend.cpp).
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpu/tape_code.h"
#include "foveal/attention.h"
#include "problem/outside.h"
#include "problem/problem.h"

namespace foveal::cpu {

class Tape {
 public:
  /// `target`: any of this backend's. scalar and avx2 have tapes of their own, the other targets of x86 run
  /// the one of avx512, those of Arm the scalar one.
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

  /// How the terms of each trained read are summed within a tile, before they are added to the gradient: to one for all that varies so, in
  /// tiles of one head or of any.
  const std::vector<Varies>& sums_of_reads(bool one_head) const;

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

  /// Attention::checked: the first read out of range at an unmasked pair. Evaluates the pairs of the valid lanes in double, one by one.
  /// dots may be null where no index reads the score.
  template <class Real>
  std::optional<problem::Outside> find_outside(const TileFrame& frame, const TapeData& data, const Real* dots) const;

  /// One line per instruction, for tests and explain().
  std::string text() const;

 private:
  struct Prepared;
  std::unique_ptr<Prepared> prepared_;
  bool has_score_ = false, has_mask_ = false, has_backward_ = false, backward_needs_dots_ = false, mask_is_ranges_ = false;
};

/// Multiplies a tile, and a second one if given (with the same random bits), by keep / (1 - p). Forward: P
/// after its row sums. Backward: dP, and the P of dv.
template <class Real>
void apply_dropout(const std::string& target, const TileFrame& frame, const TileDropout& dropout, Real* tile, Real* second);

}  // namespace foveal::cpu
