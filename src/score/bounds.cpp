#include "score/bounds.h"

#include <cmath>

namespace foveal::scoring {

std::vector<IndexCheck> check_reads(const Program& program, const std::vector<ParamInfo>& params, const Box& box, const ReadRanges& reads,
                                    const Program& mask) {
  std::vector<Interval> values(program.code.size());
  IntervalProgram(program, mask).evaluate(box, reads, values);
  std::vector<IndexCheck> checks;
  for (const Instr& instr : program.code) {
    if (instr.op != Op::read) continue;
    for (std::size_t i = 0; i < instr.index.size(); ++i) {
      const Interval index = values[static_cast<std::size_t>(instr.index[i])];
      const std::int64_t size = params[static_cast<std::size_t>(instr.param)].shape[i];
      const auto last = static_cast<double>(size - 1);
      IndexVerdict verdict = IndexVerdict::undecided;
      if (index.low >= 0 && index.high <= last) verdict = IndexVerdict::always_inside;
      if (index.low > last || index.high < 0) verdict = IndexVerdict::never_inside;
      if (index.low > index.high) verdict = IndexVerdict::always_inside;  // the mask keeps no pair here
      checks.push_back({instr.param, static_cast<int>(i), index, size, verdict});
    }
  }
  return checks;
}

std::optional<Interval> int32_overflow(const Program& program, const Box& box, const ReadRanges& reads) {
  std::vector<Interval> values(program.code.size());
  IntervalProgram(program).evaluate(box, reads, values);
  return beyond_int32(program, values);
}

std::optional<Interval> beyond_int32(const Program& program, std::span<const Interval> values) {
  constexpr double low = -2147483648.0, high = 2147483647.0;
  for (std::size_t id = 0; id < program.code.size(); ++id) {
    const Interval& value = values[id];
    const bool known = std::isfinite(value.low) && std::isfinite(value.high);
    if (program.code[id].type == Type::integer && known && (value.low < low || value.high > high)) return value;
  }
  return std::nullopt;
}

}  // namespace foveal::scoring
