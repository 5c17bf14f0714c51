#pragma once
// Ranges of keys by lane: what they leave to compute.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "cpu/kernels/block_ops.h"

namespace foveal::cpu {

/// Shrinks the range to the rows that some valid lane attends to. Saves work, and padded keys, which may hold NaN, are never read.
inline KeyRange trim(const LaneRanges& ranges, int lanes, int key_multiple, KeyRange range) {
  std::int32_t first = range.end, last = range.begin;
  for (int lane = 0; lane < lanes; ++lane)
    if (ranges.first[lane] < ranges.last[lane]) first = std::min(first, ranges.first[lane]), last = std::max(last, ranges.last[lane]);
  if (last <= first) return {range.begin, range.begin};
  return {std::max(range.begin, first / key_multiple * key_multiple), std::min(range.end, last)};
}

/// The same from a tile in which masked pairs are -inf.
template <class Real>
KeyRange trim(const Real* tile, int ld, int lanes, int key_multiple, KeyRange range) {
  const auto empty = [&](int key) {
    const Real* row = tile + key * ld;
    for (int lane = 0; lane < lanes; ++lane)
      if (row[lane] != -std::numeric_limits<Real>::infinity()) return false;
    return true;
  };
  while (range.end > range.begin && empty(range.end - 1)) --range.end;
  int begin = range.begin;
  while (begin < range.end && empty(begin)) ++begin;
  return {std::max(range.begin, begin / key_multiple * key_multiple), range.end};
}

/// Half of the lanes where the two halves should run separately, because together they then need fewer keys (on the diagonal of a causal
/// mask); otherwise all lanes.
inline int first_slice(const LaneRanges& ranges, int lanes, int half, KeyRange all) {
  if (lanes <= half) return lanes;
  const KeyRange lower = trim(ranges, half, 1, all), upper = trim({ranges.first + half, ranges.last + half}, lanes - half, 1, all);
  const KeyRange together = trim(ranges, lanes, 1, all);
  const int apart = lower.end - lower.begin + upper.end - upper.begin;
  return 8 * apart <= 7 * 2 * (together.end - together.begin) ? half : lanes;
}

}  // namespace foveal::cpu
