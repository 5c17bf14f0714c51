#include "score/bounds.h"

#include <cmath>
#include <limits>

#include "score/op_table.h"

namespace foveal::scoring {

std::vector<IndexCheck> check_reads(const Program& program, const std::vector<ParamInfo>& params, const Box& box, const ReadRanges& reads,
                                    const Program& mask) {
  const base::IdVector<Interval> values = evaluate(program, box, reads, mask);
  std::vector<IndexCheck> checks;
  for (const Instr& instr : program.code) {
    if (instr.op != Op::read) continue;
    for (std::size_t i = 0; i < instr.index.size(); ++i) {
      const Interval index = values[instr.index[i]];
      const std::int64_t size = params[static_cast<std::size_t>(instr.param)].shape[i];
      IndexVerdict verdict = is_inside(index, size) ? IndexVerdict::always_inside : IndexVerdict::undecided;
      if (index.low > static_cast<double>(size - 1) || index.high < 0) verdict = IndexVerdict::never_inside;
      if (index.low > index.high) verdict = IndexVerdict::always_inside;  // the mask keeps no pair here
      checks.push_back({instr.param, static_cast<int>(i), index, size, verdict});
    }
  }
  return checks;
}

Interval range_of(DType dtype) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  switch (dtype) {
    case DType::i64:
      return {-0x1p63, 0x1p63};
    case DType::i32:
      return {-0x1p31, 0x1p31 - 1};
    case DType::i16:
      return {-32768, 32767};
    case DType::i8:
      return {-128, 127};
    case DType::u8:
      return {0, 255};
    case DType::boolean:
      return {0, 1};
    default:
      return {-infinity, infinity, true};
  }
}

bool is_inside(const Interval& index, std::int64_t size) { return index.low >= 0 && index.high <= static_cast<double>(size - 1); }

bool fits_32_bits(const Interval& bounds) { return bounds.low >= -2147483648.0 && bounds.high <= 2147483647.0; }

bool may_leave_64_bits(const Program& program, ValueId id, std::span<const Interval> values) {
  constexpr double limit = 0x1p63, margin = 0x1p23;  // the margin covers rounding of the bounds
  const Instr& instr = program[id];
  const auto of = [values](ValueId value) { return values[static_cast<std::size_t>(value)]; };
  if (instr.type != Type::integer || !may_overflow(instr.op)) return false;
  if (instr.op == Op::floor_div)  // by -1
    return of(instr.arg[0]).low < margin - limit && of(instr.arg[1]).low <= -1 && of(instr.arg[1]).high >= -1;
  return of(id).low < margin - limit || of(id).high > limit - margin;
}

std::optional<Interval> beyond_64_bits(const Program& program, std::span<const Interval> values) {
  for (ValueId id = 0; id < program.size(); ++id) {
    const Interval& value = values[static_cast<std::size_t>(id)];
    if (std::isfinite(value.low) && std::isfinite(value.high) && may_leave_64_bits(program, id, values)) return value;
  }
  return std::nullopt;
}

}  // namespace foveal::scoring
