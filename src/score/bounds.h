#pragma once
// Interval analyses of whole programs: whether reads stay inside their parameters, and how many bits integers need.
#include <optional>
#include <span>
#include <vector>

#include "foveal/tensor.h"
#include "score/interval.h"
#include "score/program.h"

namespace foveal::scoring {

enum class IndexVerdict : std::uint8_t {
  always_inside,  ///< need not be clamped
  undecided,      ///< may be out of range: clamped, or checked at run time
  never_inside,   ///< out of range at every pair: an error
};

struct IndexCheck {
  std::int32_t param;
  int dimension;
  Interval index;     ///< bounds of the index
  std::int64_t size;  ///< of the dimension
  IndexVerdict verdict;
};

/// One check per index of each read, in program order. With `mask`, over the pairs that it keeps: for errors. Without, over the whole box:
/// for omitting clamps, since kernels evaluate masked pairs too.
std::vector<IndexCheck> check_reads(const Program& program, const std::vector<ParamInfo>& params, const Box& box, const ReadRanges& reads,
                                    const Program& mask = {});

/// The range of an element type.
Interval range_of(DType dtype);

/// Whether an index with these bounds is certain to be in [0, size).
bool is_inside(const Interval& index, std::int64_t size);

/// Whether an integer with these bounds is certain to fit in 32 bits.
bool fits_32_bits(const Interval& bounds);

/// Whether an integer that is computed may overflow 64 bits, by the bounds of a program's values.
bool may_leave_64_bits(const Program& program, ValueId id, std::span<const Interval> values);

/// The bounds of an integer that may overflow 64 bits, if there is one among a program's values. Unbounded values are not counted.
std::optional<Interval> beyond_64_bits(const Program& program, std::span<const Interval> values);

}  // namespace foveal::scoring
