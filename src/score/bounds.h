#pragma once
// Do the reads of a program stay inside their parameters? Do its integers fit 32 bits? Decided by interval analysis where it can be.
#include <optional>
#include <span>
#include <vector>

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

/// Of the bounds of a program's values, those of an integer that may leave 32 bits (kernels compute with int32), if there is one. Values
/// that depend on unknown parameters are given the benefit of the doubt.
std::optional<Interval> beyond_int32(const Program& program, std::span<const Interval> values);
/// The same over a box of positions.
std::optional<Interval> int32_overflow(const Program& program, const Box& box, const ReadRanges& reads);

}  // namespace foveal::scoring
