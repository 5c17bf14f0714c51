#pragma once
// Per-row inputs of the backward pass: lse, and delta = sum over d of dO * O, less dlse. And the
// gradient of the sink, which needs nothing else.
#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "base/far_row.h"
#include "base/parallel.h"
#include "cpu/lanes.h"
#include "cpu/setup.h"

namespace foveal::cpu {

template <class Real>
class RowScalars {
 public:
  Real *lse = nullptr, *delta = nullptr;
  Real* far = nullptr;  ///< in units: the maximum of a far row, whose lse is then log(sum). 0 elsewhere

  RowScalars() = default;
  explicit RowScalars(const problem::Problem& problem) : total_q_(problem.total_q), seqlen_q_(problem.seqlen_q), varlen_(problem.varlen) {}
  static Layout<RowScalars> layout(const problem::Problem& problem) {
    const auto rows = static_cast<std::size_t>(problem.heads_q * problem.total_q);
    Layout<RowScalars> layout;
    layout.array(&RowScalars::lse, rows);
    layout.array(&RowScalars::delta, rows);
    layout.array(&RowScalars::far, rows);
    return layout;
  }

  std::int64_t index(const Sequence& sequence, std::int32_t head, std::int32_t q) const {
    return head * total_q_ + (varlen_ ? sequence.q_begin + q : sequence.batch * seqlen_q_ + q);
  }
  /// A row that attends to nothing has lse = +inf here, so that P is 0.
  bool empty(std::int64_t row) const { return lse[row] == std::numeric_limits<Real>::infinity(); }

  using RowDots = void (*)(const LaneRows& a, const LaneRows& b, int dim, Real* result);

  /// Fills the rows of a tile. True: some are far and must be measured.
  bool fill(const problem::Buffers& buffers, const Sequence& sequence, const LaneTile& tile, int dim_v, RowDots row_dots) const {
    const HeadRows outs(buffers.out), douts(buffers.dout);
    const LaneScalars<Real> lses(buffers.lse), dlses(buffers.dlse);
    const void* out[max_lanes] = {};
    const void* dout[max_lanes] = {};
    for_each_lane(tile, [&](int lane, std::int32_t head, std::int32_t q) {
      out[lane] = outs.row(sequence.batch, sequence.q_begin + q, head);
      dout[lane] = douts.row(sequence.batch, sequence.q_begin + q, head);
    });
    alignas(64) Real dots[max_lanes];
    const int lanes = padded_lanes(tile);
    row_dots({out, lanes, outs.stride, outs.dtype}, {dout, lanes, douts.stride, douts.dtype}, dim_v, dots);
    bool any_far = false;
    for_each_lane(tile, [&](int lane, std::int32_t head, std::int32_t q) {
      const std::int64_t token = sequence.q_begin + q, row = index(sequence, head, q);
      const Real of_row = lses.at(sequence.batch, head, token);
      const bool nothing = of_row == -std::numeric_limits<Real>::infinity();
      lse[row] = nothing ? std::numeric_limits<Real>::infinity() : of_row;
      delta[row] = nothing ? Real(0) : dots[lane] - (dlses.present() ? dlses.at(sequence.batch, head, token) : Real(0));
      far[row] = 0;
      any_far |= base::is_far(static_cast<double>(of_row));
    });
    return any_far;
  }

  /// Sets far rows of a tile from the maxima and sums of softmax().
  void measured(const Setup<Real>& s, const Sequence& sequence, const LaneTile& tile, const Real* max, const Real* sum) const {
    for_each_lane(tile, [&](int lane, std::int32_t head, std::int32_t q) {
      const std::int64_t row = index(sequence, head, q);
      const auto of_row = static_cast<double>(lse[row]);
      if (!base::is_far(of_row) || sum[lane] == 0) return;
      const double largest = s.score_of(static_cast<double>(max[lane])), log_sum = s.log_sum(max[lane], sum[lane]);
      lse[row] = static_cast<Real>(base::far_log_sum(of_row, largest, log_sum, static_cast<double>(std::numeric_limits<Real>::epsilon())));
      far[row] = max[lane];
    });
  }

  /// d / d sink = - sum over rows of p(sink) * delta, where it is wanted.
  void write_dsink(const Setup<Real>& s, const problem::Buffers& buffers) const {
    if (s.problem.sink < 0) return;
    const auto param = static_cast<std::size_t>(s.problem.sink);
    if (!s.problem.params[param].gradient.present) return;
    const TensorView &sinks = buffers.params[param], &dsinks = buffers.dparams[param];
    base::parallel_for(s.executor, s.problem.heads_q, [&](std::int64_t head, int) {
      const double sink = base::load(sinks.data, sinks.dtype, head * sinks.strides[0]);
      double sum = 0;
      for (std::int64_t row = head * total_q_; row < (head + 1) * total_q_; ++row) {
        const double above = far[row] == 0 ? sink : s.score_of(static_cast<double>(s.in_units(sink)) - static_cast<double>(far[row]));
        const double p = std::exp(above - static_cast<double>(lse[row]));
        if (p != 0) sum -= p * static_cast<double>(delta[row]);
      }
      base::store(dsinks.data, dsinks.dtype, head * dsinks.strides[0], sum);
    });
  }

 private:
  std::int64_t total_q_ = 0, seqlen_q_ = 0;
  bool varlen_ = false;
};

}  // namespace foveal::cpu
