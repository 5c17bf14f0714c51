#pragma once
// Merging the results of one part of an attention with those of earlier parts: out and lse by weight, gradients by addition.
#include "args.cuh"
#include "element.cuh"
#include "philox.cuh"

#include "config.cuh"

namespace foveal::device {

/// The row of dropout bits, numbered over all heads of the whole attention.
FOVEAL_DEVICE u32 dropout_row(const AttentionArgs& args, int batch, int head) {
  if constexpr (kProblem.of_whole) return static_cast<u32>(args.part.batch_offset + batch) * args.part.heads + args.part.head_offset + head;
  return static_cast<u32>(batch) * args.heads_q + head;
}

/// out = part * (out of the part) + previous * (out there).
template <class Real>
struct PartWeights {
  Real part, previous;
};

constexpr u64 kPartNumberBits = 0xffff;  // low bits of lse; f64 has none to spare, and its kernels never redo tasks

template <class Real>
FOVEAL_DEVICE bool already_merged(double lse, const PartArgs& part) {
  return sizeof(Real) == 4 && (static_cast<u64>(__double_as_longlong(lse)) & kPartNumberBits) == part.number;
}

/// lse: of the part (-inf without keys), replaced by that of both. A row is merged once even if its task is redone: it carries the number
/// of the last part it merged. A row that has met no key stays -inf.
template <class Real>
FOVEAL_DEVICE PartWeights<Real> join_part(double& lse, double before, const PartArgs& part) {
  const double none = -static_cast<double>(infinity());
  if (lse == none) {
    lse = before;
    return {Real(0), before == none ? Real(0) : Real(1)};
  }
  double both = lse;
  PartWeights<Real> weights{Real(1), Real(0)};
  if (before != none) {
    if (already_merged<Real>(before, part)) {
      lse = before;
      return {Real(0), Real(1)};
    }
    const double high = lse > before ? lse : before, low = lse > before ? before : lse;
    both = high + static_cast<double>(log_real(Real(1) + exp_real(Real(low - high))));
    weights = {exp_real(Real(lse - both)), exp_real(Real(before - both))};
  }
  if constexpr (sizeof(Real) == 8) return lse = both, weights;
  lse = __longlong_as_double(static_cast<long long>((static_cast<u64>(__double_as_longlong(both)) & ~kPartNumberBits) | part.number));
  return weights;
}

/// Adds row `r` (0 or 1) of a warpgroup's accumulator, times `factor`, to `previous_weight` times the fp32 values there (not read if that
/// is 0). Several columns are read before any is written: the compiler cannot know that they do not alias.
template <int count>
FOVEAL_DEVICE void add_row(float* row, const float (&acc)[count], int r, float factor, float previous_weight, int columns, int lane) {
  constexpr int kPairs = count / 4, kAtOnce = kPairs < 8 ? kPairs : 8;
#pragma unroll
  for (int first = 0; first < kPairs; first += kAtOnce) {
    float2 before[kAtOnce];
    float2* to = reinterpret_cast<float2*>(row + 8 * first + 2 * (lane % 4));
    const int left = columns - 8 * first - 2 * (lane % 4);  // from there on
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      before[i] = make_float2(0, 0);
      if (previous_weight != 0 && first + i < kPairs && 8 * i < left) before[i] = to[4 * i];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = 4 * (first + i) + 2 * r;
      if (first + i >= kPairs || 8 * i >= left) continue;
      to[4 * i] =
          make_float2(fmaf(previous_weight, before[i].x, acc[at] * factor), fmaf(previous_weight, before[i].y, acc[at + 1] * factor));
    }
  }
}

/// The same for mma.sync fragments and any strides: rows [row, row + 16 kM) and columns from `col` on, within bounds.
template <int kM, int kN8, class Real, class PreviousWeight>
FOVEAL_DEVICE void add_rows(Real* data, i64 row_stride, i64 col_stride, int row, int rows, int col, int cols, const Real (&acc)[kM][kN8][4],
                            Real factor, PreviousWeight&& previous_weight) {
  const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = row + 16 * m + g + 8 * i;
      if (r >= rows) continue;
      const Real before = previous_weight(m, i);
#pragma unroll
      for (int n = 0; n < kN8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int c = col + 8 * n + 2 * t + j;
          if (c >= cols) continue;
          Real* to = data + r * row_stride + c * col_stride;
          Real sum = acc[m][n][2 * i + j] * factor;
          if (before != 0) sum += before * *to;
          *to = sum;
        }
      }
    }
  }
}

}  // namespace foveal::device
