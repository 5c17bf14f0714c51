#pragma once
// Destinations of parameter-gradient terms: exact sums, or an element of their own.
#include "ptx/warp.cuh"
#include "score/exact_sum.cuh"
#include "score/score.cuh"

namespace foveal::device {

constexpr int kReadSlots = kReads > 0 ? kReads : 1;
using Bins = ExactSum<kProblem.bin_bits>;

/// The element that a read touches, row-major.
template <int r>
FOVEAL_DEVICE i64 read_element(const AttentionArgs& args, real score, const Position& at) {
  int index[kMaxParamRank];
  read_index<r>(score, at, args.score, index);
  i64 element = 0;
#pragma unroll
  for (int d = 0; d < kRead[r].rank; ++d) element = element * args.score.param[kRead[r].param].size[d] + index[d];
  return element;
}

template <int r>
FOVEAL_DEVICE void add_to_read(const AttentionArgs& args, real score, const Position& at, real term) {
  if (term == 0) return;
  const ParamGradient& gradient = args.gradient[kRead[r].param];
  Bins::add(gradient.bins, gradient.elements, read_element<r>(args, score, at), term);
}

template <int r>
FOVEAL_DEVICE void add_to_element(const AttentionArgs& args, i64 element, real term) {
  const ParamGradient& gradient = args.gradient[kRead[r].param];
  Bins::add(gradient.bins, gradient.elements, element, term);
}

/// Warp-collective. Lanes often share one element: far buckets of relative positions, the ends of a clamped table.
template <int r>
FOVEAL_DEVICE void add_warp_to_read(const AttentionArgs& args, i64 element, real term) {
  const u32 active = __ballot_sync(~0u, term != 0);
  if (active == 0) return;
  const ParamGradient& gradient = args.gradient[kRead[r].param];
  const int leader = __ffs(active) - 1;
  const i64 leaders_element = __shfl_sync(~0u, element, leader);
  if (__all_sync(~0u, term == 0 || element == leaders_element)) {
    term = warp_sum(term);
    if (lane_id() == leader) Bins::add(gradient.bins, gradient.elements, element, term);
  } else if (term != 0) {
    Bins::add(gradient.bins, gradient.elements, element, term);
  }
}

template <int r>
FOVEAL_DEVICE void store_to_read(const AttentionArgs& args, real score, const Position& at, real term) {
  int index[kMaxParamRank];
  read_index<r>(score, at, args.score, index);
  const ParamGradient& gradient = args.gradient[kRead[r].param];
  i64 offset = 0;
#pragma unroll
  for (int d = 0; d < kRead[r].rank; ++d) offset += index[d] * gradient.stride[d];
  from_real(static_cast<ReadGradient<r>*>(gradient.values)[offset], term);
}

}  // namespace foveal::device
