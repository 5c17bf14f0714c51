#include "cpu/tape_lower.h"

#include <cmath>

#include "cpu/tape_steps.h"
#include "score/discrete.h"

namespace foveal::cpu {

using scoring::Instr;
using scoring::Linear;
using scoring::Op;
using scoring::ValueId;

Lowering::Lowering(TapeNodes& nodes, const scoring::Program& program)
    : nodes_(nodes), program_(program), q_(program.symbol(Op::q_idx)), kv_(program.symbol(Op::kv_idx)) {
  const ValueId count = program.size();
  const base::IdVector<char> wide = scoring::deciding_reals(program, true);  // in double
  narrow_.assign(count, no_node);
  wide_.assign(count, no_node);
  holds_score_.assign(count, false);
  if (nodes.source().widths) flags_ = nodes.source().widths->wide(program);
  linear_ = linear_forms();
  for (ValueId id = 0; id < count; ++id) {
    holds_score_[id] = holds_score(program_[id]);
    if (program_[id].type == Type::integer && (is_wide(id) || has_wide_operand(program_[id]))) {
      wide_[id] = lower_wide(id);
      narrow_[id] = nodes_.make(TapeOp::shorten, wide_[id]);
      continue;
    }
    if (!wide[id]) {
      narrow_[id] = lower(id, false);
      continue;
    }
    wide_[id] = lower(id, true);
    narrow_[id] = nodes_.source().f64 ? wide_[id] : nodes_.make(TapeOp::round, wide_[id]);
  }
}

bool Lowering::is_constant(ValueId id, double value) const { return program_[id].op == Op::real_const && program_[id].real == value; }

bool Lowering::has_wide_operand(const Instr& instr) const {
  return std::any_of(instr.arg.begin(), instr.arg.end(),
                     [this](ValueId arg) { return arg >= 0 && program_[arg].type == Type::integer && is_wide(arg); });
}

/// Of integers with 64 bits, or with operands of 64 bits, only sums are needed, for ranges of keys.
base::IdVector<Linear> Lowering::linear_forms() const {
  base::IdVector<char> whole(program_.size(), false);
  for (ValueId id = 0; id < program_.size(); ++id) {
    const Instr& instr = program_[id];
    const bool adds = instr.op == Op::add || instr.op == Op::sub || instr.op == Op::neg;
    whole[id] = !adds && (is_wide(id) || has_wide_operand(instr));
  }
  return scoring::linear_forms(program_, whole);
}

NodeId Lowering::in_64_bits(ValueId id) {
  if (wide_[id] != no_node) return wide_[id];
  const Node& node = nodes_[narrow_[id]];
  return node.op == TapeOp::constant_i && node.space == Space::none ? nodes_.integer64(node.integer)
                                                                    : nodes_.make(TapeOp::lengthen, narrow_[id]);
}

/// An integer with 64 bits, or with operands of 64 bits.
NodeId Lowering::lower_wide(ValueId id) {
  const Instr& instr = program_[id];
  switch (instr.op) {
    case Op::integer_const:
      return nodes_.integer64(instr.integer);
    case Op::read: {
      std::vector<NodeId> index;
      for (ValueId value : instr.index) index.push_back(plain(value));
      const int place = nodes_.place(instr.param, std::move(index), nodes_.source().params[static_cast<std::size_t>(instr.param)]);
      return nodes_.read(TapeOp::read_l, place, false);
    }
    case Op::to_integer:
      if (is_real(instr.arg[0])) {
        const bool in_double = wide_[instr.arg[0]] != no_node;
        return nodes_.make(TapeOp::to_integer64_r, in_double ? wide_[instr.arg[0]] : plain(instr.arg[0]), no_node, no_node, in_double);
      }
      return in_64_bits(instr.arg[0]);
    default:
      return elementwise(id, false);
  }
}

/// The node of an operation: by default the step of its name.
NodeId Lowering::lower(ValueId id, bool wide) {
  const Instr& instr = program_[id];
  const bool integers = instr.type == Type::integer;
  switch (instr.op) {
    case Op::real_const:
      return nodes_.real(instr.real, wide);
    case Op::boolean_const:
      return nodes_.boolean(instr.integer != 0);
    case Op::score:
      return raw_score(1);
    case Op::batch:
    case Op::head:
    case Op::q_idx:
    case Op::kv_idx:
    case Op::seqlen_q:
    case Op::seqlen_kv:
      return symbol(id);
    case Op::read:
      return read(id, wide);
    case Op::integer_const:
      return nodes_.integer(instr.integer);
    case Op::add:
    case Op::sub:
    case Op::neg:
      return integers ? integer_sum(id) : elementwise(id, wide);
    case Op::mul:
      if (integers) return integer_sum(id);
      for (int k : {0, 1}) {
        const Instr& factor = program_[instr.arg[static_cast<std::size_t>(k)]];
        if (!wide && factor.op == Op::real_const) return times(instr.arg[static_cast<std::size_t>(1 - k)], factor.real);
      }
      return elementwise(id, wide);
    case Op::div: {
      const Instr& divisor = program_[instr.arg[1]];
      if (!wide && divisor.op == Op::real_const && std::isnormal(1 / divisor.real)) return times(instr.arg[0], 1 / divisor.real);
      return elementwise(id, wide);
    }
    case Op::eq:
    case Op::ne:
    case Op::lt:
    case Op::le:
      return is_real(instr.arg[0]) ? discrete(id) : compare(id);
    case Op::to_real:
      return is_real(instr.arg[0]) ? (wide ? wide_[instr.arg[0]] : plain(instr.arg[0])) : elementwise(id, wide);
    case Op::to_float32:  // an integer that has become a float is one
      return !wide && !nodes_.source().f64 && program_[instr.arg[0]].op == Op::to_real ? plain(instr.arg[0]) : elementwise(id, wide);
    case Op::to_integer:
      if (is_real(instr.arg[0])) return discrete(id);
      return program_[instr.arg[0]].type == Type::boolean ? elementwise(id, false) : plain(instr.arg[0]);
    case Op::to_int32:  // of what fits: itself
      return plain(instr.arg[0]);
    case Op::to_boolean:
      if (is_real(instr.arg[0])) return discrete(id);
      return program_[instr.arg[0]].type == Type::integer ? elementwise(id, false) : plain(instr.arg[0]);
    default:
      return elementwise(id, wide);
  }
}

NodeId Lowering::symbol(ValueId id) {
  const bool one_head = nodes_.source().one_head;
  switch (program_[id].op) {
    case Op::batch:
      return nodes_.add({.op = TapeOp::batch});
    case Op::seqlen_q:
      return nodes_.add({.op = TapeOp::seqlen_q});
    case Op::seqlen_kv:
      return nodes_.add({.op = TapeOp::seqlen_kv});
    case Op::head:
      return one_head ? nodes_.add({.op = TapeOp::head}) : nodes_.given(Space::lane_head, Varies::row);
    case Op::q_idx:
      return nodes_.given(Space::lane_q, Varies::row);
    default:
      return nodes_.add({.op = TapeOp::kv_idx, .rank = Varies::column});
  }
}

/// The raw score, q . k * scale, times a factor.
NodeId Lowering::raw_score(double factor) {
  const double scale = nodes_.source().scale * factor;
  return scale == 1 ? nodes_.dots() : nodes_.make(TapeOp::mul_r, nodes_.dots(), nodes_.real(scale, false));
}

NodeId Lowering::elementwise(ValueId id, bool wide) {
  const Instr& instr = program_[id];
  const bool in_64 = (instr.type == Type::integer && is_wide(id)) || has_wide_operand(instr);
  std::array<NodeId, 3> arg{no_node, no_node, no_node};
  Type operands = instr.type;  // of the last one: the condition of a select comes first
  for (std::size_t k = 0; k < arg.size(); ++k) {
    if (instr.arg[k] < 0) break;
    operands = program_[instr.arg[k]].type;
    if (in_64 && operands == Type::integer)
      arg[k] = in_64_bits(instr.arg[k]);
    else
      arg[k] = wide && is_real(instr.arg[k]) ? wide_[instr.arg[k]] : plain(instr.arg[k]);
  }
  const auto op = static_cast<std::size_t>(instr.op);
  const int step = in_64 && operands == Type::integer ? tape_steps64[op] : tape_steps[op][static_cast<std::size_t>(operands)];
  if (in_64 && instr.type == Type::integer) return nodes_.make(static_cast<TapeOp>(step), arg[0], arg[1], arg[2]);
  return nodes_.make(static_cast<TapeOp>(step), arg[0], arg[1], arg[2], wide && instr.type == Type::real);
}

/// A step from reals to integers or booleans: in double if all its operands are, which they are unless they depend on the score.
NodeId Lowering::discrete(ValueId id) {
  const Instr& instr = program_[id];
  const ValueId a = instr.arg[0], b = instr.arg[1];
  const bool wide = wide_[a] != no_node && (b < 0 || wide_[b] != no_node);
  const auto operand = [&](ValueId value) { return value < 0 ? no_node : wide ? wide_[value] : plain(value); };
  const int step = tape_steps[static_cast<std::size_t>(instr.op)][static_cast<std::size_t>(Type::real)];
  return nodes_.make(static_cast<TapeOp>(step), operand(a), operand(b), no_node, wide);
}

/// Integer comparison: sum(key and diagonal terms) op -sum(lane and uniform terms), if there are no others.
NodeId Lowering::compare(ValueId id) {
  const Instr& instr = program_[id];
  if (is_rigid(id) || has_wide_operand(instr)) return elementwise(id, false);
  const Sums sums = sums_by_rank(scoring::combine(linear_[instr.arg[0]], linear_[instr.arg[1]], -1));
  const NodeId left = total({sums[Varies::column], sums[Varies::diagonal], sums[Varies::pair]});
  const NodeId right = negated(total({sums[Varies::row], sums[Varies::uniform]}));
  if (nodes_[left].rank == Varies::pair) return elementwise(id, false);
  const int step = tape_steps[static_cast<std::size_t>(instr.op)][static_cast<std::size_t>(Type::integer)];
  return nodes_.make(static_cast<TapeOp>(step), left, right);
}

NodeId Lowering::read(ValueId id, bool wide) {
  const Instr& instr = program_[id];
  std::vector<NodeId> index;
  for (ValueId value : instr.index) index.push_back(plain(value));
  const int place = nodes_.place(instr.param, std::move(index), nodes_.source().params[static_cast<std::size_t>(instr.param)]);
  switch (instr.type) {
    case Type::real:
      return nodes_.read(TapeOp::read_r, place, wide);
    case Type::integer:
      return nodes_.read(TapeOp::read_i, place, false);
    case Type::boolean:
      break;
  }
  return nodes_.read(TapeOp::read_b, place, false);
}

// ---- integers as sums ----

NodeId Lowering::integer_sum(ValueId id) { return linear_[id].of(id) != 0 ? elementwise(id, false) : sum(linear_[id]); }

NodeId Lowering::plus(NodeId a, NodeId b) { return a == no_node ? b : b == no_node ? a : nodes_.make(TapeOp::add_i, a, b); }

NodeId Lowering::multiple(NodeId a, std::int64_t factor) {
  return factor == 1 ? a : factor == -1 ? nodes_.make(TapeOp::neg_i, a) : nodes_.make(TapeOp::mul_i, a, nodes_.integer(factor));
}

NodeId Lowering::negated(NodeId a) {
  const Node& node = nodes_[a];
  if (node.op == TapeOp::constant_i && node.integer != lowest_integer) return nodes_.integer(-node.integer);
  return node.op == TapeOp::neg_i ? node.arg[0] : nodes_.make(TapeOp::neg_i, a);
}

NodeId Lowering::negated_sum64(const Linear& linear) {
  constexpr std::int64_t far = std::int64_t{1} << 61;  // a single term beyond is clamped to it
  NodeId sum = nodes_.integer64(-linear.constant);
  for (const Linear::Term& term : linear.terms) {
    NodeId value = in_64_bits(term.atom);
    if (is_wide(term.atom) && linear.terms.size() <= 2)
      value = nodes_.make(TapeOp::max_l, nodes_.make(TapeOp::min_l, value, nodes_.integer64(far)), nodes_.integer64(-far));
    sum = nodes_.make(TapeOp::sub_l, sum, nodes_.make(TapeOp::mul_l, value, nodes_.integer64(term.coefficient)));
  }
  return sum;
}

/// Sums by rank, so that ranks combine as late as possible; c (kv - q) is one diagonal term.
Lowering::Sums Lowering::sums_by_rank(const Linear& linear) {
  const std::int64_t of_q = linear.of(q_), of_kv = linear.of(kv_);
  const bool diagonal = nodes_.source().one_head && of_kv != 0 && of_kv == -of_q;
  Sums sums;
  if (diagonal) sums[Varies::diagonal] = multiple(nodes_.add({.op = TapeOp::distance, .rank = Varies::diagonal}), of_kv);
  for (const Linear::Term& term : linear.terms) {
    if (diagonal && (term.atom == q_ || term.atom == kv_)) continue;
    const NodeId node = plain(term.atom);
    NodeId& of_rank = sums[nodes_[node].rank];
    of_rank = plus(of_rank, multiple(node, term.coefficient));
  }
  if (linear.constant != 0) sums[Varies::uniform] = plus(sums[Varies::uniform], nodes_.integer(linear.constant));
  return sums;
}

NodeId Lowering::total(std::initializer_list<NodeId> parts) {
  NodeId sum = no_node;
  for (NodeId part : parts) sum = plus(sum, part);
  return sum == no_node ? nodes_.integer(0) : sum;
}

NodeId Lowering::sum(const Linear& linear) {
  const Sums s = sums_by_rank(linear);
  // Uniform parts are added to the smallest array.
  for (Varies rank : {Varies::row, Varies::column, Varies::diagonal})
    if (s[rank] != no_node)
      return total({plus(s[rank], s[Varies::uniform]), rank == Varies::row ? s[Varies::column] : no_node,
                    rank != Varies::diagonal ? s[Varies::diagonal] : no_node, s[Varies::pair]});
  return total({s[Varies::pair], s[Varies::uniform]});
}

// ---- constant factors ----

/// Is a value the raw score, rounded already, plus other terms, or a multiple of that?
bool Lowering::holds_score(const Instr& instr) const {
  const auto in = [&](std::size_t k) { return instr.arg[k] >= 0 && holds_score_[instr.arg[k]]; };
  switch (instr.op) {
    case Op::score:
      return true;
    case Op::neg:
    case Op::div:
      return in(0);
    case Op::add:
    case Op::sub:
    case Op::mul:
      return in(0) || in(1);
    default:
      return false;
  }
}

/// Whether (a + b) * factor may be a * factor + b * factor. The factor rounds both terms, which shows where they cancel (0.01 * (t[q_idx] -
/// t[kv_idx]) of time stamps), unless it is a power of two, or the sum is rounded like the raw score in it.
bool Lowering::distributes(ValueId sum, double factor) const {
  int exponent = 0;
  const bool exact = std::abs(std::frexp(factor, &exponent)) == 0.5 && std::abs(exponent) <= 16;
  return exact || holds_score_[sum];
}

/// value * factor, with the factor pushed to where it is cheapest: into constants, lower ranks and the scale of the dot products. `budget`:
/// so many operations may still be repeated with the factor; values that are used more than once would become exponentially many.
NodeId Lowering::scaled(ValueId id, double factor, int& budget) {
  const Instr& instr = program_[id];
  if (instr.op == Op::real_const) return nodes_.real(instr.real * factor, false);
  if (instr.op == Op::score) return raw_score(factor);
  const NodeId value = plain(id);
  if (factor == 1 && value != no_node) return value;
  const auto multiplied = [&] { return nodes_.make(TapeOp::mul_r, value, nodes_.real(factor, false)); };
  if (nodes_[value].rank != Varies::pair || --budget < 0) return multiplied();
  const auto part = [&](std::size_t k, double by) { return scaled(instr.arg[k], by, budget); };
  switch (instr.op) {
    case Op::add:
    case Op::sub:
      if (!distributes(id, factor)) return multiplied();
      return nodes_.make(instr.op == Op::add ? TapeOp::add_r : TapeOp::sub_r, part(0, factor), part(1, factor));
    case Op::neg:
      return part(0, -factor);
    case Op::min:
      return factor > 0 ? nodes_.make(TapeOp::min_r, part(0, factor), part(1, factor)) : multiplied();
    case Op::max:
      return factor > 0 ? nodes_.make(TapeOp::max_r, part(0, factor), part(1, factor)) : multiplied();
    case Op::select:
      return nodes_.make(TapeOp::select_r, plain(instr.arg[0]), part(1, factor), part(2, factor));
    case Op::mul: {
      for (std::size_t k : {0, 1})
        if (program_[instr.arg[k]].op == Op::real_const) return part(1 - k, factor * program_[instr.arg[k]].real);
      const std::size_t to = nodes_[plain(instr.arg[0])].rank != Varies::pair || program_[instr.arg[0]].op == Op::score ? 0 : 1;
      return nodes_.make(TapeOp::mul_r, part(to, factor), plain(instr.arg[1 - to]));
    }
    case Op::div: {
      const Instr& divisor = program_[instr.arg[1]];
      if (divisor.op == Op::real_const && std::isnormal(1 / divisor.real)) return part(0, factor / divisor.real);
      return nodes_.make(TapeOp::div_r, part(0, factor), plain(instr.arg[1]));
    }
    default:
      return multiplied();
  }
}

}  // namespace foveal::cpu
