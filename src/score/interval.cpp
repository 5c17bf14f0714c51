#include "score/interval.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "score/interval_rules.h"
#include "score/op_table.h"

namespace foveal::scoring {

Interval ReadRanges::range(std::int32_t, const std::vector<Interval>&) const { return interval_rules::everything(Type::real); }

std::vector<Interval> evaluate(const Program& program, const Box& box, const ReadRanges& reads) {
  std::vector<Interval> values;
  values.reserve(program.code.size());
  const auto operand = [&values](ValueId id) { return id < 0 ? Interval{0, 0} : values[static_cast<std::size_t>(id)]; };
  for (const Instr& instr : program.code) {
    switch (instr.op) {
      case Op::real_const: {
        const bool exact = static_cast<double>(static_cast<float>(instr.real)) == instr.real;
        const Interval point{instr.real, instr.real};
        values.push_back(exact ? point : interval_rules::widened(point));
        break;
      }
      case Op::integer_const:
      case Op::boolean_const:
        values.push_back({static_cast<double>(instr.integer), static_cast<double>(instr.integer)});
        break;
      case Op::score:
        values.push_back(box.score);
        break;
      case Op::batch:
        values.push_back(box.batch);
        break;
      case Op::head:
        values.push_back(box.head);
        break;
      case Op::q_idx:
        values.push_back(box.q_idx);
        break;
      case Op::kv_idx:
        values.push_back(box.kv_idx);
        break;
      case Op::seqlen_q:
        values.push_back(box.seqlen_q);
        break;
      case Op::seqlen_kv:
        values.push_back(box.seqlen_kv);
        break;
      case Op::read: {
        std::vector<Interval> index;
        for (ValueId id : instr.index) index.push_back(operand(id));
        Interval range = reads.range(instr.param, index);
        if (instr.type == Type::boolean) range = {std::max(range.low, 0.0), std::min(range.high, 1.0)};
        if (instr.type != Type::real) range.maybe_nan = false;
        values.push_back(range);
        break;
      }
      default:
        values.push_back(row(instr.op).interval(instr.type, operand(instr.arg[0]), operand(instr.arg[1]), operand(instr.arg[2])));
        break;
    }
  }
  return values;
}

}  // namespace foveal::scoring
