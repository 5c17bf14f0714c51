#include "score/conditions.h"

#include <utility>

namespace foveal::scoring {

Conditions conditions_of(const Program& mask) {
  Conditions found;
  if (mask.empty()) return found;
  const base::IdVector<Linear> forms = linear_forms(mask);
  const auto add = [&](std::optional<Linear> sum) {
    if (sum)
      found.sums.push_back(*std::move(sum));
    else
      found.are_all = false;
  };
  std::vector<std::pair<ValueId, bool>> pending{{mask.outputs.front(), false}};  // values that hold, or do not: chains may be long
  while (!pending.empty()) {
    const auto [id, negated] = pending.back();
    pending.pop_back();
    const Instr& instr = mask[id];
    const auto [a, b] = std::pair(instr.arg[negated ? 1 : 0], instr.arg[negated ? 0 : 1]);
    if (instr.op == (negated ? Op::logical_or : Op::logical_and)) {
      pending.insert(pending.end(), {{a, negated}, {b, negated}});
    } else if (instr.op == Op::logical_not) {
      pending.emplace_back(instr.arg[0], !negated);
    } else if ((instr.op == Op::le || instr.op == Op::lt) && mask[a].type == Type::integer) {
      Linear gap = combine(forms[a], forms[b], -1);  // a < b is a + 1 <= b; not (a <= b) is b < a
      gap.constant += (instr.op == Op::lt) != negated;
      for (const Linear& sum : without_abs(mask, forms, gap)) add(in_symbols(mask, sum));
    } else if (instr.op != Op::boolean_const || (instr.integer != 0) == negated) {
      found.are_all = false;
    }
  }
  return found;
}

}  // namespace foveal::scoring
