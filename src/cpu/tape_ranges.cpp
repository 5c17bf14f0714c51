// Masks that are one range of keys for every lane: causal, windows, prefixes, padding and their intersections.
#include "cpu/tape_lower.h"

namespace foveal::cpu {
namespace {

using scoring::Instr;
using scoring::Linear;
using scoring::Op;
using scoring::ValueId;

/// max(first) <= kv_idx < min(last).
struct Ranges {
  std::vector<NodeId> first, last;
};

class RangeFinder {
 public:
  RangeFinder(TapeNodes& nodes, Lowering& lowering) : nodes_(nodes), lowering_(lowering) {}

  std::optional<Ranges> find(ValueId id);

 private:
  std::optional<Ranges> both(ValueId a, ValueId b);
  std::optional<Ranges> either(ValueId a, ValueId b);
  std::optional<Ranges> comparison(ValueId id);
  bool add_half_lines(Linear linear, Op op, bool in_64_bits, Ranges& out);
  bool is_lane_value(NodeId node) const { return nodes_[node].rank == Varies::uniform || nodes_[node].rank == Varies::row; }

  TapeNodes& nodes_;
  Lowering& lowering_;
};

std::optional<Ranges> RangeFinder::find(ValueId id) {
  const Instr& instr = lowering_[id];
  const NodeId here = lowering_.plain(id);
  if (is_lane_value(here))
    return Ranges{{}, {nodes_.make(TapeOp::select_i, here, nodes_.integer(highest_integer), nodes_.integer(lowest_integer))}};
  switch (instr.op) {
    case Op::logical_and:
      return both(instr.arg[0], instr.arg[1]);
    case Op::logical_or:
      return either(instr.arg[0], instr.arg[1]);
    case Op::lt:
    case Op::le:
    case Op::eq:
      if (lowering_[instr.arg[0]].type == Type::integer) return comparison(id);
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

std::optional<Ranges> RangeFinder::both(ValueId left, ValueId right) {
  auto a = find(left), b = find(right);
  if (!a || !b) return std::nullopt;
  a->first.insert(a->first.end(), b->first.begin(), b->first.end());
  a->last.insert(a->last.end(), b->last.begin(), b->last.end());
  return a;
}

/// A union is one range only where both are half-lines of the same direction.
std::optional<Ranges> RangeFinder::either(ValueId left, ValueId right) {
  auto a = find(left), b = find(right);
  if (!a || !b || a->first.size() + a->last.size() != 1 || b->first.size() + b->last.size() != 1 || a->last.size() != b->last.size())
    return std::nullopt;
  if (a->last.empty()) return Ranges{{nodes_.make(TapeOp::min_i, a->first[0], b->first[0])}, {}};
  return Ranges{{}, {nodes_.make(TapeOp::max_i, a->last[0], b->last[0])}};
}

/// The half-lines of c * kv_idx + rest (lt, le, eq) 0 with c = 1 or -1.
bool RangeFinder::add_half_lines(Linear linear, Op op, bool in_64_bits, Ranges& out) {
  const std::int64_t of_kv = linear.of(lowering_.kv_idx());
  linear = linear.without(lowering_.kv_idx());
  if (of_kv != 1 && of_kv != -1) return false;
  const bool inclusive = op != Op::lt;
  if (in_64_bits) {  // kv <= -rest, or kv >= rest
    const auto bound = [&](const Linear& sum, std::int64_t more) {
      const NodeId value = nodes_.make(TapeOp::add_l, lowering_.negated_sum64(sum), nodes_.integer64(more));
      return nodes_.make(TapeOp::shorten, value);
    };
    const Linear negative = scoring::scaled(linear, -1);
    if (!is_lane_value(bound(linear, 0))) return false;
    if (of_kv == 1 || op == Op::eq) out.last.push_back(bound(of_kv == 1 ? linear : negative, inclusive));
    if (of_kv == -1 || op == Op::eq) out.first.push_back(bound(of_kv == -1 ? negative : linear, !inclusive));
    return true;
  }
  const NodeId rest = lowering_.sum(linear);
  if (!is_lane_value(rest)) return false;
  const auto one_if = [&](bool condition) { return condition ? nodes_.integer(1) : no_node; };
  if (of_kv == 1 || op == Op::eq) out.last.push_back(lowering_.plus(of_kv == 1 ? lowering_.negated(rest) : rest, one_if(inclusive)));
  if (of_kv == -1 || op == Op::eq) out.first.push_back(lowering_.plus(of_kv == -1 ? rest : lowering_.negated(rest), one_if(!inclusive)));
  return true;
}

std::optional<Ranges> RangeFinder::comparison(ValueId id) {
  const Instr& instr = lowering_[id];
  const bool in_64_bits = lowering_.is_rigid(id);
  const Linear gap = scoring::combine(lowering_.linear(instr.arg[0]), lowering_.linear(instr.arg[1]), -1);
  Ranges out;
  for (const Linear& sum : instr.op == Op::eq ? std::vector{gap} : lowering_.without_abs(gap))
    if (!add_half_lines(sum, instr.op, in_64_bits, out)) return std::nullopt;
  return out;
}

}  // namespace

std::optional<CompiledTape> compile_ranges(const TapeSource& source) {
  if (source.score->mask.empty()) return std::nullopt;
  TapeNodes nodes(source);
  Lowering lowering(nodes, source.score->mask);
  const auto ranges = RangeFinder(nodes, lowering).find(source.score->mask.outputs[0]);
  if (!ranges) return std::nullopt;
  const auto fold = [&](const std::vector<NodeId>& bounds, TapeOp op, std::int32_t start) {
    NodeId result = bounds.empty() ? nodes.integer(start) : bounds[0];
    for (std::size_t i = 1; i < bounds.size(); ++i) result = nodes.make(op, result, bounds[i]);
    return nodes.make_ranked(TapeOp::copy_i, Varies::row, result);
  };
  const NodeId first = fold(ranges->first, TapeOp::max_i, lowest_integer), last = fold(ranges->last, TapeOp::min_i, highest_integer);
  base::IdVector<TapeOperand> slots;
  CompiledTape tape = assemble(nodes, {first, last}, no_node, &slots);
  tape.first = slots[first];
  tape.last = slots[last];
  return tape;
}

}  // namespace foveal::cpu
