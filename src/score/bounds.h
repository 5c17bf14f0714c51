#pragma once
// Do the reads of a program stay inside their parameters? How many bits do its integers need? Decided by interval analysis where it can be.
#include <optional>
#include <span>
#include <vector>

#include "foveal/tensor.h"
#include "score/interval.h"
#include "score/program.h"

namespace foveal::scoring {

enum class IndexVerdict : std::uint8_t {
  always_inside,  ///< a kernel need not clamp it
  undecided,      ///< it may leave the parameter somewhere: clamped, or checked at run time
  never_inside,   ///< it is outside at every pair: an error in the expression
};

struct IndexCheck {
  std::int32_t param;
  int dimension;
  Interval index;     ///< bounds of the index
  std::int64_t size;  ///< of the dimension
  IndexVerdict verdict;
};

/// One check for each index of each read, in program order. With `mask`, over the pairs that it keeps: for errors. Without, over the whole
/// box: for leaving out clamps, because kernels also evaluate pairs that are masked.
std::vector<IndexCheck> check_reads(const Program& program, const std::vector<ParamInfo>& params, const Box& box, const ReadRanges& reads,
                                    const Program& mask = {});

/// What a type of elements can hold.
Interval range_of(DType dtype);

/// Is an integer with these bounds certain to fit 32 bits?
bool fits_32_bits(const Interval& bounds);

/// Of the bounds of a program's values, those of an integer that may leave 64 bits, if there is one. Values of which nothing is known are given
/// the benefit of the doubt.
std::optional<Interval> beyond_64_bits(const Program& program, std::span<const Interval> values);

}  // namespace foveal::scoring
