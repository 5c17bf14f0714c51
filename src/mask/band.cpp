#include "mask/band.h"

#include <algorithm>

namespace foveal::mask {
namespace {

using scoring::Instr;
using scoring::Op;
using scoring::ValueId;

/// q * q_idx + kv * kv_idx + constant
struct Form {
  std::int64_t q = 0, kv = 0, constant = 0;
};

class Reader {
 public:
  Reader(const scoring::Program& program, std::optional<std::int64_t> seqlen_q, std::optional<std::int64_t> seqlen_kv)
      : program_(program), seqlen_q_(seqlen_q), seqlen_kv_(seqlen_kv) {}

  std::optional<Band> band(ValueId id, bool negated = false) const {
    const Instr& instr = at(id);
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
  const Instr& at(ValueId id) const { return program_.code[static_cast<std::size_t>(id)]; }

  /// low + margin <= high
  std::optional<Band> at_most(ValueId low, ValueId high, std::int64_t margin) const {
    if (at(low).op == Op::abs) {
      const auto inside = form(at(low).arg[0]), limit = form(high);
      if (!inside || !limit || limit->q != 0 || limit->kv != 0) return std::nullopt;
      const std::int64_t reach = limit->constant - margin;
      return limits({inside->q, inside->kv, inside->constant - reach}, {-inside->q, -inside->kv, -inside->constant - reach});
    }
    const auto a = form(low), b = form(high);
    if (!a || !b) return std::nullopt;
    const Form difference{a->q - b->q, a->kv - b->kv, a->constant - b->constant + margin};
    return limits(difference, difference);
  }

  /// The band where both forms are at most 0.
  static std::optional<Band> limits(const Form& a, const Form& b) {
    Band band;
    for (const Form& f : {a, b}) {
      if (f.kv == 1 && f.q == -1) {
        band.high = std::min(band.high, -f.constant);
      } else if (f.kv == -1 && f.q == 1) {
        band.low = std::max(band.low, f.constant);
      } else {
        return std::nullopt;
      }
    }
    return band;
  }

  std::optional<Form> form(ValueId id) const {
    const Instr& instr = at(id);
    if (instr.type != Type::integer) return std::nullopt;
    switch (instr.op) {
      case Op::integer_const:
        return Form{0, 0, instr.integer};
      case Op::q_idx:
        return Form{1, 0, 0};
      case Op::kv_idx:
        return Form{0, 1, 0};
      case Op::seqlen_q:
        if (!seqlen_q_) return std::nullopt;
        return Form{0, 0, *seqlen_q_};
      case Op::seqlen_kv:
        if (!seqlen_kv_) return std::nullopt;
        return Form{0, 0, *seqlen_kv_};
      case Op::neg: {
        const auto a = form(instr.arg[0]);
        if (!a) return std::nullopt;
        return Form{-a->q, -a->kv, -a->constant};
      }
      case Op::add:
      case Op::sub: {
        const auto a = form(instr.arg[0]), b = form(instr.arg[1]);
        if (!a || !b) return std::nullopt;
        const std::int64_t sign = instr.op == Op::add ? 1 : -1;
        return Form{a->q + sign * b->q, a->kv + sign * b->kv, a->constant + sign * b->constant};
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
