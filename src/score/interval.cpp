#include "score/interval.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "score/conditions.h"
#include "score/interval_rules.h"
#include "score/op_table.h"

namespace foveal::scoring {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Left less right of a comparison.
Linear difference(const base::IdVector<Linear>& forms, const Instr& comparison) {
  return combine(forms[comparison.arg[0]], forms[comparison.arg[1]], -1);
}

/// Bounds of a sum of symbols from sums that are <= 0: those of the same terms or their negations.
Interval bounds_from(const std::vector<Linear>& facts, const Linear& sum) {
  Interval bounds = interval_rules::everything(Type::integer);
  for (const Linear& fact : facts) {
    if (fact.same_terms(sum)) bounds.high = std::min(bounds.high, static_cast<double>(sum.constant - fact.constant));
    if (negated(fact).same_terms(sum)) bounds.low = std::max(bounds.low, static_cast<double>(sum.constant + fact.constant));
  }
  return bounds;
}

}  // namespace

Interval ReadRanges::range(std::int32_t, std::span<const Interval>) const { return interval_rules::everything(Type::real); }

IntervalProgram::IntervalProgram(const Program& program, const Program& assumed) : program_(program), gap_of_(program.size(), -1) {
  const base::IdVector<Linear> forms = linear_forms(program);
  for (ValueId id = 0; id < program.size(); ++id) {
    const Instr& instr = program[id];
    if (!is_comparison(instr.op) || program[instr.arg[0]].type != Type::integer) continue;
    gap_of_[id] = static_cast<std::int32_t>(gaps_.size());
    gaps_.push_back(difference(forms, instr));
  }
  const std::vector<Linear> facts = conditions_of(assumed).sums;
  if (facts.empty()) return;
  for (const Linear& gap : gaps_) {
    const std::optional<Linear> sum = in_symbols(program, gap);
    assumed_gaps_.push_back(sum ? bounds_from(facts, *sum) : Interval{-infinity, infinity});
  }
  assumed_.assign(program.size(), {-infinity, infinity});
  for (ValueId id = 0; id < program.size(); ++id) {
    if (program[id].type != Type::integer) continue;
    if (const std::optional<Linear> sum = in_symbols(program, forms[id])) assumed_[id] = bounds_from(facts, *sum);
  }
}

void IntervalProgram::evaluate(const Box& box, const ReadRanges& reads, std::span<Interval> values) const {
  constexpr Interval zero{0, 0};
  const auto operand = [&values](ValueId id) { return id < 0 ? Interval{0, 0} : values[static_cast<std::size_t>(id)]; };
  const auto bounds = [&](const Linear& sum) {
    double low = static_cast<double>(sum.constant), high = low, far_low = std::abs(low), far_high = far_low;
    for (const Linear::Term& term : sum.terms) {
      const Interval& atom = values[static_cast<std::size_t>(term.atom)];
      const auto coefficient = static_cast<double>(term.coefficient);
      const double least = coefficient * (coefficient > 0 ? atom.low : atom.high),
                   most = coefficient * (coefficient > 0 ? atom.high : atom.low);
      low += least, far_low += std::abs(least);
      high += most, far_high += std::abs(most);
    }
    // Terms that cancel leave the rounding of far larger partial sums.
    const auto rounding = [&sum](double far) { return far < 0x1p53 ? 0 : far * static_cast<double>(2 * sum.terms.size() + 2) * 0x1p-52; };
    return Interval{low - rounding(far_low), high + rounding(far_high)};
  };
  for (ValueId id = 0; id < program_.size(); ++id) {
    const Instr& instr = program_[id];
    Interval& value = values[static_cast<std::size_t>(id)];
    switch (instr.op) {
      case Op::real_const:
        value = interval_rules::in_kernels(instr.real);
        break;
      case Op::integer_const:
      case Op::boolean_const:
        value = interval_rules::whole({static_cast<double>(instr.integer), static_cast<double>(instr.integer)});
        break;
      case Op::score:
        value = box.score;
        break;
      case Op::batch:
      case Op::head:
      case Op::q_idx:
      case Op::kv_idx:
      case Op::seqlen_q:
      case Op::seqlen_kv:
        value = position(box, instr.op);
        break;
      case Op::read: {
        std::array<Interval, TensorView::max_rank> index;
        for (std::size_t d = 0; d < instr.index.size(); ++d) index[d] = operand(instr.index[d]);
        value = reads.range(instr.param, {index.data(), instr.index.size()});
        if (instr.type == Type::boolean) value = {std::max(value.low, 0.0), std::min(value.high, 1.0)};
        if (instr.type == Type::integer) value = interval_rules::whole({value.low, value.high});
        break;
      }
      default:
        if (gap_of_[id] >= 0) {
          const auto at = static_cast<std::size_t>(gap_of_[id]);
          Interval gap = bounds(gaps_[at]);
          if (!assumed_gaps_.empty()) gap = {std::max(gap.low, assumed_gaps_[at].low), std::min(gap.high, assumed_gaps_[at].high)};
          value = row(instr.op).interval(instr.type, gap, zero, zero);
        } else {
          value = row(instr.op).interval(instr.type, operand(instr.arg[0]), operand(instr.arg[1]), operand(instr.arg[2]));
          if (instr.type == Type::integer) value = interval_rules::whole(value);
        }
        break;
    }
    if (assumed_.size() > 0) value = {std::max(value.low, assumed_[id].low), std::min(value.high, assumed_[id].high), value.maybe_nan};
  }
}

double IntervalProgram::reach(ValueId id, std::span<const Interval> values) const {
  const std::int32_t gap = gap_of_[id];
  if (gap < 0) return 0;
  const Linear& sum = gaps_[static_cast<std::size_t>(gap)];
  double reach = std::abs(static_cast<double>(sum.constant)) + 1;
  for (const Linear::Term& term : sum.terms) {
    const Interval& atom = values[static_cast<std::size_t>(term.atom)];
    reach += std::abs(static_cast<double>(term.coefficient)) * std::max(std::abs(atom.low), std::abs(atom.high));
  }
  return reach;
}

base::IdVector<Interval> evaluate(const Program& program, const Box& box, const ReadRanges& reads, const Program& assumed) {
  base::IdVector<Interval> values(program.size());
  IntervalProgram(program, assumed).evaluate(box, reads, values.span());
  return values;
}

}  // namespace foveal::scoring
