#include "problem/overlap.h"

#include <algorithm>
#include <array>

namespace foveal::problem {
namespace {

/// The unknown d_i of the equation sum(d_i * stride_i) = target, with low <= d_i <= high and stride > 0.
struct Term {
  std::int64_t stride, low, high;
};

struct Equation {
  std::array<Term, 2 * TensorView::max_rank + 1> terms{};  // by stride, largest first
  std::size_t count = 0;

  void add(std::int64_t stride, std::int64_t low, std::int64_t high) {
    if (stride == 0 || (low == 0 && high == 0)) return;
    if (stride < 0) {
      stride = -stride;
      std::swap(low, high);
      low = -low, high = -high;
    }
    std::size_t i = 0;
    while (i < count && terms[i].stride > stride) ++i;
    if (i < count && terms[i].stride == stride) {
      terms[i].low += low, terms[i].high += high;
      return;
    }
    for (std::size_t later = count++; later > i; --later) terms[later] = terms[later - 1];
    terms[i] = {stride, low, high};
  }

  /// Depth-first, largest strides first: the reach of the remaining terms leaves few values for each.
  bool solvable(std::int64_t target) const {
    int budget = 4096;
    return search(0, target, budget);
  }

 private:
  static std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && a < 0); }

  bool search(std::size_t i, std::int64_t target, int& budget) const {
    if (i == count) return target == 0;
    if (--budget < 0) return true;
    std::int64_t reach_low = 0, reach_high = 0;
    for (std::size_t j = i + 1; j < count; ++j) reach_low += terms[j].low * terms[j].stride, reach_high += terms[j].high * terms[j].stride;
    const Term& term = terms[i];
    const std::int64_t low = std::max(term.low, -floor_div(reach_high - target, term.stride));  // ceil((target - reach_high) / stride)
    const std::int64_t high = std::min(term.high, floor_div(target - reach_low, term.stride));
    for (std::int64_t d = low; d <= high; ++d)
      if (search(i + 1, target - d * term.stride, budget)) return true;
    return false;
  }
};

}  // namespace

bool overlaps_itself(const TensorSpec& spec) {
  // Two indices that first differ in dimension `first`, by at least 1, and have one address.
  for (std::size_t first = 0; first < static_cast<std::size_t>(spec.rank); ++first) {
    if (spec.sizes[first] == 1) continue;
    if (spec.strides[first] == 0) return true;
    Equation equation;
    equation.add(spec.strides[first], 1, spec.sizes[first] - 1);
    for (std::size_t d = first + 1; d < static_cast<std::size_t>(spec.rank); ++d)
      equation.add(spec.strides[d], 1 - spec.sizes[d], spec.sizes[d] - 1);
    if (equation.solvable(0)) return true;
  }
  return false;
}

ByteRange bytes_of(const TensorView& view) {
  const auto width = static_cast<std::int64_t>(size_of(view.dtype));
  ByteRange bytes{reinterpret_cast<std::intptr_t>(view.data), reinterpret_cast<std::intptr_t>(view.data) + width};
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
    const std::int64_t extent = (view.sizes[d] - 1) * view.strides[d] * width;
    (extent < 0 ? bytes.begin : bytes.end) += extent;
  }
  return bytes;
}

bool overlap(const TensorView& a, const ByteRange& bytes_a, const TensorView& b) {
  const ByteRange bytes_b = bytes_of(b);
  if (bytes_a.end <= bytes_b.begin || bytes_b.end <= bytes_a.begin) return false;
  const auto width_a = static_cast<std::int64_t>(size_of(a.dtype)), width_b = static_cast<std::int64_t>(size_of(b.dtype));
  Equation equation;  // address in a - address in b = 0
  for (std::size_t d = 0; d < static_cast<std::size_t>(a.rank); ++d) equation.add(a.strides[d] * width_a, 0, a.sizes[d] - 1);
  for (std::size_t d = 0; d < static_cast<std::size_t>(b.rank); ++d) equation.add(b.strides[d] * width_b, 1 - b.sizes[d], 0);
  equation.add(1, 1 - width_b, width_a - 1);
  return equation.solvable(reinterpret_cast<std::intptr_t>(b.data) - reinterpret_cast<std::intptr_t>(a.data));
}

}  // namespace foveal::problem
