#pragma once
// What all plans share: the problem, the table of operations, the score tape, threads, and the work where it is known at planning.
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/philox.h"
#include "cpu/dispatch.h"
#include "cpu/lanes.h"
#include "cpu/tape.h"
#include "plan/backend.h"

namespace foveal::cpu {

/// Bytes that a thread uses again and again before it takes the next ones, and that should stay in the L2 of its core: half
/// of 1 MiB, so that what streams past has room.
constexpr std::size_t l2_share = std::size_t{512} << 10;
/// The same for cores with 2 MiB, which those with AMX have: of tiles with their accumulators, beside a block of keys.
constexpr std::size_t l2_share_amx = std::size_t{768} << 10;

/// Of kernels over packed tensors: scores are dot products and masks ranges of keys, or there are programs for each pair.
enum class PackedForm { ranges, programs };

template <class Real>
struct Setup {
  Setup(const problem::Problem& problem, const Target& target, const BlockOps<Real>& ops, const PlanOptions& options)
      : Setup(problem, target, ops, options, {ops.tile_lanes, ops.block_kv}) {}
  /// With a tile shape other than the table's.
  Setup(const problem::Problem& problem, const Target& target, const BlockOps<Real>& ops, const PlanOptions& options, Geometry geometry)
      : problem(problem),
        target(target.name),
        ops(ops),
        tape(problem, target.name),
        executor(options.executor ? *options.executor : base::default_executor(options.threads)),
        geometry(geometry),
        planner(this->problem, geometry) {
    dim = static_cast<int>(problem.head_dim), dim_v = static_cast<int>(problem.head_dim_v);
    // Without a tape the scale is folded into the exponential, except for its sign, because maxima come first. (A scale of 0 becomes a tiny
    // one: -inf * 0 would not be -inf.)
    if (!tape.has_score()) {
      sign = problem.scale < 0 ? Real(-1) : Real(1);
      scale = ScoreScale<Real>::of_dots(std::max(std::abs(problem.scale), 1e-30));
    }
    if (planner.is_static()) work.emplace(planner.plan());
  }

  /// A score in units (ScoreScale), rounded like those of a tile.
  Real in_units(double score) const { return static_cast<Real>(tape.has_score() ? score : score * ScoreScale<Real>::kLog2e / 2); }
  double score_of(double units) const { return tape.has_score() ? units : units * (2 * ScoreScale<Real>::kLn2); }
  static bool far(Real max) { return !(std::abs(max) < Real(far_units)); }
  /// A maximum in base 2 as softmax() computes it, unless it is far.
  double base2(Real max) const { return static_cast<double>(Real(max * scale.unit_log2)); }
  /// to - from in base 2.
  Real rise(Real from, Real to) const {
    if (from == to) return 0;
    return static_cast<Real>(far(from) || far(to) ? static_cast<double>(to - from) * static_cast<double>(scale.unit_log2)
                                                  : base2(to) - base2(from));
  }
  /// lse from the maximum and sum of softmax(); and lse - maximum.
  double lse(Real max, Real sum) const {
    return far(max) ? score_of(static_cast<double>(max)) + std::log(static_cast<double>(sum))
                    : (base2(max) + std::log2(static_cast<double>(sum))) * ScoreScale<Real>::kLn2;
  }
  double log_sum(Real max, Real sum) const {
    return far(max) ? std::log(static_cast<double>(sum)) : lse(max, sum) - score_of(static_cast<double>(max));
  }
  int workers() const { return std::max(1, executor.concurrency); }

  TileFrame frame(const Sequence& sequence, const LaneView& lanes, std::int32_t block, KeyRange range) const {
    TileFrame f;
    f.keys = range.end - range.begin;
    f.lanes = lanes.count;
    f.ld = geometry.lanes;
    f.batch = sequence.symbol;
    f.seqlen_q = sequence.whole_q, f.seqlen_kv = sequence.whole_kv;
    f.kv_idx = static_cast<std::int32_t>(sequence.kv_first + std::int64_t{block} * geometry.block_kv + range.begin);
    f.head = lanes.head, f.q_idx = lanes.q_idx;
    return f;
  }
  int block_keys(const Sequence& sequence, std::int32_t block) const {
    return static_cast<int>(std::min<std::int64_t>(geometry.block_kv, sequence.seqlen_kv - std::int64_t{block} * geometry.block_kv));
  }
  void refuse_fault(const TileFrame& frame, const TapeData& data, const Real* dots) const {
    if (const auto fault = tape.find_outside(frame, data, dots)) throw Error(ErrorCode::invalid_argument, problem::describe(*fault));
  }
  TileDropout dropout(const DropoutRng& rng) const {
    const double p = problem.attention.dropout_p;
    return {rng.seed, rng.offset, base::dropout_threshold(p), 1.0 / (1.0 - p), static_cast<std::int32_t>(problem.heads_all)};
  }
  /// There is no mask, or it is a range of keys for each lane.
  bool masks_by_ranges() const { return !tape.has_mask() || tape.mask_is_ranges(); }
  /// Query rows of a kv head in a sequence; of packed sequences, on average.
  std::int64_t mean_rows() const {
    return problem.group_size * (problem.varlen ? problem.total_q / std::max<std::int64_t>(problem.batch, 1) : problem.seqlen_q);
  }
  bool has_dropout() const { return problem.attention.dropout_p > 0; }
  PackedForm packed_form() const { return tape.has_score() || !masks_by_ranges() ? PackedForm::programs : PackedForm::ranges; }
  /// The target has kernels over packed tensors, and they take the problem, if there are enough queries.
  bool packs() const { return ops.packed && problem.dtype == DType::bf16 && !problem.attention.checked && !has_dropout(); }
  /// Pairs may be dropped in full blocks too: by dropout, or by a score of -inf.
  bool drops_anywhere() const { return tape.has_score() || has_dropout(); }
  /// Elements of a tile's accumulator: a row of lanes for each dim.
  std::size_t acc_count(int row_dim) const {
    return static_cast<std::size_t>(padded_dim(row_dim)) * static_cast<std::size_t>(ops.tile_lanes);
  }
  /// Bytes of some rows in the tensors' own type.
  std::size_t copy_bytes(int rows, int row_dim) const {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(row_dim) * size_of(problem.dtype);
  }

  problem::Problem problem;
  std::string target;
  const BlockOps<Real>& ops;
  Tape tape;
  Executor executor;
  Geometry geometry;
  WorkPlanner planner;
  int dim = 0, dim_v = 0;
  Real sign = 1;
  ScoreScale<Real> scale = ScoreScale<Real>::of_scores();
  std::optional<Work> work;  ///< when it is static
};

}  // namespace foveal::cpu
