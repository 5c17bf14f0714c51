#include "mask/band.h"

#include <algorithm>

#include "score/linear.h"

namespace foveal::mask {
namespace {

using scoring::Instr;
using scoring::Linear;
using scoring::Op;
using scoring::ValueId;

/// Atoms for all reads of a position.
constexpr ValueId q_atom = 0, kv_atom = 1;

class Reader {
 public:
  Reader(const scoring::Program& program, std::optional<std::int64_t> seqlen_q, std::optional<std::int64_t> seqlen_kv)
      : program_(program), seqlen_q_(seqlen_q), seqlen_kv_(seqlen_kv) {}

  std::optional<Band> band(ValueId id, bool negated = false) const {
    const Instr& instr = program_[id];
    switch (instr.op) {
      case Op::boolean_const:
        if ((instr.integer != 0) != negated) return Band{};
        return std::nullopt;
      case Op::logical_not:
        return band(instr.arg[0], !negated);
      case Op::logical_and:
      case Op::logical_or: {
        if ((instr.op == Op::logical_or) != negated) return std::nullopt;
        const auto a = band(instr.arg[0], negated), b = band(instr.arg[1], negated);
        if (!a || !b) return std::nullopt;
        return Band{std::max(a->low, b->low), std::min(a->high, b->high)};
      }
      case Op::le:
      case Op::lt: {
        // a <= b; a < b is a <= b - 1; not (a <= b) is b <= a - 1
        const bool strict = (instr.op == Op::lt) != negated;
        const ValueId low = instr.arg[negated ? 1 : 0], high = instr.arg[negated ? 0 : 1];
        return at_most(low, high, strict ? 1 : 0);
      }
      default:
        return std::nullopt;
    }
  }

 private:
  /// low + margin <= high
  std::optional<Band> at_most(ValueId low, ValueId high, std::int64_t margin) const {
    const bool distance = program_[low].op == Op::abs;  // |a| <= r is a <= r and -a <= r
    const auto a = linear(distance ? program_[low].arg[0] : low), b = linear(high);
    if (!a || !b || (distance && !b->is_constant())) return std::nullopt;
    Band band;
    if (!limit(scoring::combine(*a, *b, -1), margin, band)) return std::nullopt;
    if (distance && !limit(scoring::combine(scoring::scaled(*a, -1), *b, -1), margin, band)) return std::nullopt;
    return band;
  }

  /// Narrows the band to form + margin <= 0. False: the form is not that of a diagonal.
  static bool limit(const Linear& form, std::int64_t margin, Band& band) {
    const auto coefficient = [&](ValueId atom) {
      const auto term = std::find_if(form.terms.begin(), form.terms.end(), [&](const Linear::Term& t) { return t.atom == atom; });
      return term == form.terms.end() ? 0 : term->coefficient;
    };
    const std::int64_t constant = form.constant + margin;
    if (coefficient(kv_atom) == 1 && coefficient(q_atom) == -1)
      band.high = std::min(band.high, -constant);
    else if (coefficient(kv_atom) == -1 && coefficient(q_atom) == 1)
      band.low = std::max(band.low, constant);
    else
      return false;
    return true;
  }

  std::optional<Linear> linear(ValueId id) const {
    const Instr& instr = program_[id];
    if (instr.type != Type::integer) return std::nullopt;
    const auto constant = [](std::optional<std::int64_t> value) -> std::optional<Linear> {
      if (!value) return std::nullopt;
      return Linear{{}, *value};
    };
    switch (instr.op) {
      case Op::integer_const:
        return constant(instr.integer);
      case Op::q_idx:
        return Linear{{{q_atom, 1}}, 0};
      case Op::kv_idx:
        return Linear{{{kv_atom, 1}}, 0};
      case Op::seqlen_q:
        return constant(seqlen_q_);
      case Op::seqlen_kv:
        return constant(seqlen_kv_);
      case Op::neg:
      case Op::add:
      case Op::sub: {
        const auto a = linear(instr.arg[0]), b = instr.op == Op::neg ? Linear{} : linear(instr.arg[1]);
        return a && b ? scoring::sum_of(instr, *a, *b) : std::nullopt;
      }
      default:
        return std::nullopt;
    }
  }

  const scoring::Program& program_;
  std::optional<std::int64_t> seqlen_q_, seqlen_kv_;
};

}  // namespace

std::optional<Band> find_band(const scoring::Program& mask, std::optional<std::int64_t> seqlen_q, std::optional<std::int64_t> seqlen_kv) {
  if (mask.empty()) return Band{};
  return Reader(mask, seqlen_q, seqlen_kv).band(mask.outputs[0]);
}

}  // namespace foveal::mask
