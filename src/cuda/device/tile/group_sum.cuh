#pragma once
// Layout of the fp32 sums of dK and dV to which several tasks add (launch/group_sums.h): [sequence][kv head][64 keys], each in the
// accumulator order of a warpgroup. Packed sequences: [kv head][64 keys], sequence b from row padded_first_row() on.
#include "element.cuh"
#include "layout/agreed.cuh"
#include "layout/sm90.cuh"
#include "schedule/tile_runs.cuh"

#include "config.cuh"

namespace foveal::device {

/// Where a warpgroup's keys, from `key` on, have their sums; sums: with the strides of sequences and heads, in floats.
template <int columns>
FOVEAL_DEVICE float* group_sum(const Tensor& sums, const Sequence& sequence, int head_kv, int key) {
  constexpr GroupSumShape kSum(columns);
  const i64 first = kProblem.key_rows == KeyRows::packed ? padded_first_row(sequence.first_kv, sequence.batch) : 0;
  return static_cast<float*>(sums.data) + sequence.batch * sums.batch + head_kv * sums.head + (first + key) / kSum.rows * kSum.floats;
}

}  // namespace foveal::device
