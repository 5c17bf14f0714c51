#include "cpu/tape_compile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numbers>
#include <sstream>
#include <tuple>

#include "score/linear.h"

namespace foveal::cpu {

static_assert(sizeof(CompiledTape::Constant) == tape_constant_distance);

namespace {

using scoring::Instr;
using scoring::Linear;
using scoring::Op;
using scoring::Program;
using scoring::ValueId;

using NodeId = int;
constexpr NodeId none = -1;
constexpr std::int32_t lowest = std::numeric_limits<std::int32_t>::min(), highest = std::numeric_limits<std::int32_t>::max();

Rank join(Rank a, Rank b) {
  if (a == Rank::uniform || a == b) return b;
  return b == Rank::uniform ? a : Rank::full;
}

/// A step that has not been given slots yet. Nodes are made once: equal nodes are the same node.
struct Node {
  TapeOp op{};
  Rank rank{};
  bool wide = false;
  Space space = Space::none;  ///< of a value that is there already: the caller's tiles and the arrays of the frame
  std::array<NodeId, 3> arg{none, none, none};
  double real = 0;
  std::int32_t integer = 0;
  int place = -1;

  auto key() const { return std::tuple(op, rank, wide, space, arg, real, std::signbit(real), integer, place); }
};

struct PlaceNode {
  int param;
  std::vector<NodeId> index;
  std::vector<std::int64_t> sizes, strides;
  bool operator==(const PlaceNode&) const = default;
};

bool is_sum(TapeOp op) { return op == TapeOp::sum_keys || op == TapeOp::sum_lanes || op == TapeOp::sum_diagonals; }

/// The nodes of one tape program, and their conversion into steps.
class Builder {
 public:
  explicit Builder(const TapeSource& source) : source_(source) {}

  const Node& operator[](NodeId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  const TapeSource& source() const { return source_; }

  NodeId add(Node node) {
    const auto [at, added] = known_.try_emplace(node.key(), static_cast<NodeId>(nodes_.size()));
    if (added) nodes_.push_back(node);
    return at->second;
  }
  NodeId given(Space space, Rank rank) { return add({.rank = rank, .space = space}); }
  NodeId dots() { return given(Space::input, Rank::full); }
  NodeId ds() { return given(Space::output, Rank::full); }

  NodeId real(double value, bool wide) { return add({.op = TapeOp::constant_r, .wide = wide && !source_.f64, .real = value}); }
  NodeId integer(std::int64_t value) {
    return add({.op = TapeOp::constant_i, .integer = static_cast<std::int32_t>(std::clamp<std::int64_t>(value, lowest, highest))});
  }
  NodeId boolean(bool value) { return add({.op = TapeOp::constant_i, .integer = value ? -1 : 0}); }

  NodeId make(TapeOp op, NodeId a, NodeId b = none, NodeId c = none, bool wide = false) {
    Node node{.op = op, .wide = wide && !source_.f64, .arg = {a, b, c}};
    for (NodeId arg : node.arg)
      if (arg != none) node.rank = join(node.rank, (*this)[arg].rank);
    return add(node);
  }
  /// A node of its own, shared with nothing: what goes to the caller's tile is written last, after everything that others read.
  NodeId make_output(TapeOp op, NodeId a, NodeId b) {
    nodes_.push_back({.op = op, .rank = Rank::full, .arg = {a, b, none}});
    return static_cast<NodeId>(nodes_.size()) - 1;
  }
  NodeId make_ranked(TapeOp op, Rank rank, NodeId a, int place = -1) {
    return add({.op = op, .rank = rank, .arg = {a, none, none}, .place = place});
  }

  bool is_integer(NodeId id, std::int32_t value) const { return (*this)[id].op == TapeOp::constant_i && (*this)[id].integer == value; }

  /// An address; `layout` says how the parameter (or the accumulator) lies in memory.
  int place(int param, std::vector<NodeId> index, const TapeLayout& layout) {
    PlaceNode place{param, std::move(index), layout.sizes, layout.strides};
    const auto found = std::find(places_.begin(), places_.end(), place);
    if (found != places_.end()) return static_cast<int>(found - places_.begin());
    places_.push_back(std::move(place));
    return static_cast<int>(places_.size()) - 1;
  }
  Rank rank_of_place(int place) const {
    Rank rank = Rank::uniform;
    for (NodeId index : places_[static_cast<std::size_t>(place)].index) rank = join(rank, (*this)[index].rank);
    return rank;
  }
  NodeId read(TapeOp op, int place, bool wide) {
    return add({.op = op, .rank = rank_of_place(place), .wide = wide && !source_.f64, .place = place});
  }

  /// Steps for the roots (kept in this order at the end of their sections) and all they need. `output`: the node that goes to the caller's
  /// tile, last of all.
  CompiledTape finish(std::vector<NodeId> roots, NodeId output);

  TapeOperand slot_of(NodeId id) const { return slots_[static_cast<std::size_t>(id)]; }

 private:
  enum class Section { before, strip, after };

  template <class Fn>
  void each_operand(const Node& node, Fn fn) const {
    for (NodeId arg : node.arg)
      if (arg != none) fn(arg);
    if (node.place >= 0)
      for (NodeId index : places_[static_cast<std::size_t>(node.place)].index) fn(index);
  }

  static bool gives_real(TapeOp op);
  CompiledTape::Constant constant(const Node& node) const;
  int element_of(const Node& node) const { return !gives_real(node.op) ? 4 : node.wide || source_.f64 ? 8 : 4; }
  void fuse_multiply_adds(const std::vector<int>& uses);
  std::vector<int> count_uses(const std::vector<NodeId>& roots) const;

  const TapeSource& source_;
  std::vector<Node> nodes_;
  std::map<decltype(Node{}.key()), NodeId> known_;
  std::vector<PlaceNode> places_;
  std::vector<TapeOperand> slots_;
};

bool Builder::gives_real(TapeOp op) {
  switch (op) {
    case TapeOp::constant_i:
    case TapeOp::batch:
    case TapeOp::head:
    case TapeOp::seqlen_q:
    case TapeOp::seqlen_kv:
    case TapeOp::kv_idx:
    case TapeOp::distance:
    case TapeOp::add_i:
    case TapeOp::sub_i:
    case TapeOp::mul_i:
    case TapeOp::neg_i:
    case TapeOp::abs_i:
    case TapeOp::min_i:
    case TapeOp::max_i:
    case TapeOp::floor_div_i:
    case TapeOp::mod_i:
    case TapeOp::eq_r:
    case TapeOp::ne_r:
    case TapeOp::lt_r:
    case TapeOp::le_r:
    case TapeOp::eq_i:
    case TapeOp::ne_i:
    case TapeOp::lt_i:
    case TapeOp::le_i:
    case TapeOp::and_b:
    case TapeOp::or_b:
    case TapeOp::not_b:
    case TapeOp::xor_b:
    case TapeOp::select_i:
    case TapeOp::integer_of_r:
    case TapeOp::integer_of_b:
    case TapeOp::boolean_of_r:
    case TapeOp::boolean_of_i:
    case TapeOp::copy_i:
    case TapeOp::read_i:
    case TapeOp::read_b:
      return false;
    default:
      return true;
  }
}

std::vector<int> Builder::count_uses(const std::vector<NodeId>& roots) const {
  std::vector<int> uses(nodes_.size(), 0);
  for (NodeId root : roots) ++uses[static_cast<std::size_t>(root)];
  for (std::size_t i = nodes_.size(); i-- > 0;)
    if (uses[i] > 0) each_operand(nodes_[i], [&](NodeId arg) { ++uses[static_cast<std::size_t>(arg)]; });
  return uses;
}

/// a * b + c in one step where the product has no other use and is of the same rank (otherwise it is cheaper alone).
void Builder::fuse_multiply_adds(const std::vector<int>& uses) {
  for (Node& node : nodes_) {
    if (node.op != TapeOp::add_r && node.op != TapeOp::sub_r) continue;
    const auto product = [&](NodeId id) {
      const Node& arg = (*this)[id];
      return arg.op == TapeOp::mul_r && arg.space == Space::none && arg.wide == node.wide && arg.rank == node.rank &&
             uses[static_cast<std::size_t>(id)] == 1;
    };
    const auto [a, b, unused] = node.arg;
    if (product(a)) {
      const Node& mul = (*this)[a];
      node.op = node.op == TapeOp::add_r ? TapeOp::mul_add : TapeOp::mul_sub;
      node.arg = {mul.arg[0], mul.arg[1], b};
    } else if (product(b)) {
      const Node& mul = (*this)[b];
      node.op = node.op == TapeOp::add_r ? TapeOp::mul_add : TapeOp::sub_mul;
      node.arg = {mul.arg[0], mul.arg[1], a};
    }
  }
}

CompiledTape::Constant Builder::constant(const Node& node) const {
  CompiledTape::Constant constant{};
  const auto repeat = [&](auto value) {
    for (int i = 0; i < 16; ++i) std::memcpy(constant.bytes + i * static_cast<int>(sizeof value), &value, sizeof value);
  };
  if (node.op == TapeOp::constant_i) {
    constant.value = node.integer;
    repeat(node.integer);
  } else {
    constant.value = node.real;
    if (node.wide || source_.f64)
      repeat(node.real);
    else
      repeat(static_cast<float>(node.real));
  }
  return constant;
}

CompiledTape Builder::finish(std::vector<NodeId> roots, NodeId output) {
  if (output != none) roots.push_back(output);
  std::vector<int> uses = count_uses(roots);
  fuse_multiply_adds(uses);
  uses = count_uses(roots);

  // Sections, and each section's nodes in the order in which they were made: operands come first.
  std::vector<Section> section(nodes_.size(), Section::before);
  std::array<std::vector<NodeId>, 3> order;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (uses[i] == 0 || node.space != Space::none) continue;
    bool summed = false;
    each_operand(node, [&](NodeId arg) { summed |= is_sum((*this)[arg].op) || section[static_cast<std::size_t>(arg)] == Section::after; });
    section[i] = summed ? Section::after : node.rank == Rank::full || is_sum(node.op) ? Section::strip : Section::before;
    order[static_cast<std::size_t>(section[i])].push_back(static_cast<NodeId>(i));
  }
  auto& strip = order[static_cast<std::size_t>(Section::strip)];
  if (output != none) {  // it may overwrite what other steps read
    strip.erase(std::find(strip.begin(), strip.end(), output));
    strip.push_back(output);
  }

  CompiledTape tape;
  TapeProgram& program = tape.program;
  slots_.assign(nodes_.size(), {});
  std::map<NodeId, TapeOperand> spreads;
  std::vector<NodeId> last_use(nodes_.size(), none);  // position in the strip
  for (std::size_t position = 0; position < strip.size(); ++position)
    each_operand((*this)[strip[position]], [&](NodeId arg) { last_use[static_cast<std::size_t>(arg)] = static_cast<NodeId>(position); });
  for (NodeId id : strip) program.strip_element = std::max(program.strip_element, element_of((*this)[id]));

  const auto operand = [&](NodeId id, bool in_strip) -> TapeOperand {
    if (id == none) return {};
    const Node& node = (*this)[id];
    if (node.space != Space::none) return {node.space, 0};
    if (in_strip && node.rank == Rank::key) {
      const auto found = spreads.find(id);
      if (found != spreads.end()) return found->second;
      const TapeOperand spread{Space::key_spread, program.key_spreads++};
      TapeStep step;
      step.op = TapeOp::spread;
      step.rank = Rank::full;
      step.wide = node.wide;
      step.integers = !gives_real(node.op);
      step.out = spread;
      step.a = slot_of(id);
      tape.steps.push_back(step);
      spreads[id] = spread;
      return spread;
    }
    return slot_of(id);
  };

  std::vector<std::int32_t> free_strips;
  const auto new_slot = [&](const Node& node) -> TapeOperand {
    switch (node.rank) {
      case Rank::uniform:
        return {Space::uniform, program.uniforms++};
      case Rank::lane:
        return {Space::lane, program.lanes++};
      case Rank::key:
        return {Space::key, program.keys++};
      case Rank::diagonal:
        return {Space::diagonal, program.diagonals++};
      case Rank::full:
        break;
    }
    if (free_strips.empty()) return {Space::strip, program.strips++};
    const std::int32_t slot = free_strips.back();
    free_strips.pop_back();
    return {Space::strip, slot};
  };

  std::map<std::pair<int, bool>, int> place_numbers;
  const auto emit = [&](NodeId id, bool in_strip, NodeId position) {
    const Node& node = (*this)[id];
    if (node.op == TapeOp::constant_r || node.op == TapeOp::constant_i) {
      slots_[static_cast<std::size_t>(id)] = {Space::constant, static_cast<std::int32_t>(tape.constants.size())};
      tape.constants.push_back(constant(node));
      return;
    }
    TapeStep step;
    step.op = node.op;
    step.rank = node.rank;
    step.wide = node.wide;
    step.a = operand(node.arg[0], in_strip);
    step.b = operand(node.arg[1], in_strip);
    step.c = operand(node.arg[2], in_strip);
    if (node.place >= 0) {
      const auto [number, added] = place_numbers.try_emplace({node.place, in_strip}, static_cast<int>(tape.places.size()));
      step.place = number->second;
      if (added) {
        const PlaceNode& from = places_[static_cast<std::size_t>(node.place)];
        TapePlace place;
        place.param = from.param;
        place.rank = static_cast<int>(from.index.size());
        double span = 0;
        for (std::size_t d = 0; d < from.index.size(); ++d) {
          place.dims[d] = {operand(from.index[d], in_strip), static_cast<std::int32_t>(std::min<std::int64_t>(from.sizes[d], highest)),
                           from.strides[d]};
          if ((*this)[from.index[d]].rank != Rank::uniform)
            span += static_cast<double>(from.sizes[d] - 1) * std::abs(static_cast<double>(from.strides[d]));
        }
        place.narrow = span < 2147483648.0;
        tape.places.push_back(place);
      }
    }
    if (in_strip) {
      // A strip slot whose last use this is can hold the result when the result's elements are not larger: steps write behind where they
      // read.
      std::vector<std::int32_t> later;
      std::vector<NodeId> freed;
      each_operand(node, [&](NodeId arg) {
        const TapeOperand slot = slot_of(arg);
        if (slot.space != Space::strip || last_use[static_cast<std::size_t>(arg)] != position) return;
        if (std::find(freed.begin(), freed.end(), arg) != freed.end()) return;
        freed.push_back(arg);
        (element_of(node) <= element_of((*this)[arg]) ? free_strips : later).push_back(slot.slot);
      });
      if (id == output)
        step.out = {Space::output, 0};
      else if (node.op != TapeOp::accumulate)
        step.out = slots_[static_cast<std::size_t>(id)] = is_sum(node.op) ? slot_of(id) : new_slot(node);
      free_strips.insert(free_strips.end(), later.begin(), later.end());
    } else if (node.op != TapeOp::accumulate) {
      step.out = slots_[static_cast<std::size_t>(id)] = new_slot(node);
    }
    tape.steps.push_back(step);
  };

  for (NodeId id : order[0]) emit(id, false, none);
  for (NodeId id : strip) {  // sums start from zero
    const Node& node = (*this)[id];
    if (!is_sum(node.op)) continue;
    const TapeOperand slot = slots_[static_cast<std::size_t>(id)] = new_slot(node);
    TapeStep step;
    step.op = TapeOp::zero_r;
    step.rank = node.rank;
    step.out = slot;
    tape.steps.push_back(step);
  }
  program.strip_begin = static_cast<int>(tape.steps.size());
  for (std::size_t position = 0; position < strip.size(); ++position) emit(strip[position], true, static_cast<NodeId>(position));
  program.strip_end = static_cast<int>(tape.steps.size());
  for (NodeId id : order[2]) emit(id, false, none);
  program.count = static_cast<int>(tape.steps.size());
  program.steps = tape.steps.data();
  program.places = tape.places.data();
  program.constants = tape.constants.data();
  return tape;
}

/// The nodes of one scoring::Program inside a Builder.
class Lowering {
 public:
  Lowering(Builder& builder, const Program& program) : b_(builder), program_(program) { prepare(); }

  /// The value in the tile's precision, times a constant.
  NodeId value(ValueId id, double factor = 1) { return scaled(id, factor, 0); }
  NodeId plain(ValueId id) const { return narrow_[static_cast<std::size_t>(id)]; }
  const Instr& instr(ValueId id) const { return program_.code[static_cast<std::size_t>(id)]; }
  bool is_real_const(ValueId id, double value) const { return instr(id).op == Op::real_const && instr(id).real == value; }

  struct Ranges {
    std::vector<NodeId> first, last;  ///< keeps max(first) <= kv_idx < min(last)
  };
  std::optional<Ranges> ranges(ValueId id);

 private:
  bool depends_on_score(ValueId id) const { return program_.depends[static_cast<std::size_t>(id)] & scoring::depends_score; }
  bool is_real(ValueId id) const { return instr(id).type == Type::real; }

  /// Steps from reals to something discrete, where a rounding error would not stay small.
  bool is_discrete(const Instr& i) const {
    switch (i.op) {
      case Op::floor:
        return true;
      case Op::floor_div:
      case Op::mod:
        return i.type == Type::real;
      case Op::eq:
      case Op::ne:
      case Op::lt:
      case Op::le:
      case Op::to_integer:
      case Op::to_boolean:
        return is_real(i.arg[0]);
      default:
        return false;
    }
  }

  void prepare() {
    // Reals of positions and parameters that feed something discrete are computed exactly as the reference does: in double, nothing
    // rearranged.
    const std::size_t n = program_.code.size();
    std::vector<bool> wide(n, false);
    for (std::size_t i = n; i-- > 0;) {
      const Instr& in = program_.code[i];
      const auto id = static_cast<ValueId>(i);
      if (is_discrete(in) && in.type == Type::real && !depends_on_score(id)) wide[i] = true;
      if (!is_discrete(in) && !wide[i]) continue;
      for (ValueId arg : in.arg)
        if (arg >= 0 && is_real(arg) && !depends_on_score(arg)) wide[static_cast<std::size_t>(arg)] = true;
    }
    narrow_.assign(n, none);
    wide_.assign(n, none);
    linear_.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      const auto id = static_cast<ValueId>(i);
      if (instr(id).op == Op::q_idx && q_ < 0) q_ = id;
      if (instr(id).op == Op::kv_idx && kv_ < 0) kv_ = id;
      if (wide[i]) {
        wide_[i] = lower(id, true);
        narrow_[i] = b_.source().f64 ? wide_[i] : b_.make(TapeOp::round, wide_[i]);
      } else {
        narrow_[i] = lower(id, false);
      }
    }
  }

  /// A real operand of a discrete step: in double unless it depends on the score.
  NodeId exact(ValueId id) const { return wide_[static_cast<std::size_t>(id)] != none ? wide_[static_cast<std::size_t>(id)] : plain(id); }
  NodeId argument(ValueId id, bool wide) const { return wide && is_real(id) ? wide_[static_cast<std::size_t>(id)] : plain(id); }

  NodeId lower(ValueId id, bool wide) {
    const Instr& i = instr(id);
    const auto arg = [&](int k) { return argument(i.arg[static_cast<std::size_t>(k)], wide); };
    const auto pick = [&](TapeOp real, TapeOp integer) { return i.type == Type::real ? real : integer; };
    const auto unary = [&](TapeOp op) { return b_.make(op, arg(0), none, none, wide); };
    const auto binary = [&](TapeOp op) { return b_.make(op, arg(0), arg(1), none, wide); };
    switch (i.op) {
      case Op::real_const:
        return b_.real(i.real, wide);
      case Op::integer_const:
        return lower_integer(id, none);
      case Op::boolean_const:
        return b_.boolean(i.integer != 0);
      case Op::score:
        return b_.source().scale == 1 ? b_.dots() : b_.make(TapeOp::mul_r, b_.dots(), b_.real(b_.source().scale, false));
      case Op::batch:
        return lower_integer(id, b_.add({.op = TapeOp::batch}));
      case Op::seqlen_q:
        return lower_integer(id, b_.add({.op = TapeOp::seqlen_q}));
      case Op::seqlen_kv:
        return lower_integer(id, b_.add({.op = TapeOp::seqlen_kv}));
      case Op::head:
        return lower_integer(id, b_.source().one_head ? b_.add({.op = TapeOp::head}) : b_.given(Space::lane_head, Rank::lane));
      case Op::q_idx:
        return lower_integer(id, b_.given(Space::lane_q, Rank::lane));
      case Op::kv_idx:
        return lower_integer(id, b_.add({.op = TapeOp::kv_idx, .rank = Rank::key}));
      case Op::read:
        return lower_read(id, wide);
      case Op::add:
        return i.type == Type::real ? binary(TapeOp::add_r) : lower_integer(id, none);
      case Op::sub:
        return i.type == Type::real ? binary(TapeOp::sub_r) : lower_integer(id, none);
      case Op::neg:
        return i.type == Type::real ? unary(TapeOp::neg_r) : lower_integer(id, none);
      case Op::mul:
        if (i.type != Type::real) return lower_integer(id, none);
        if (!wide) {
          for (int k : {0, 1})
            if (instr(i.arg[static_cast<std::size_t>(k)]).op == Op::real_const)
              return value(i.arg[static_cast<std::size_t>(1 - k)], instr(i.arg[static_cast<std::size_t>(k)]).real);
        }
        return binary(TapeOp::mul_r);
      case Op::div:
        if (!wide && instr(i.arg[1]).op == Op::real_const && std::isnormal(1 / instr(i.arg[1]).real))
          return value(i.arg[0], 1 / instr(i.arg[1]).real);
        return binary(TapeOp::div_r);
      case Op::floor_div:
        return i.type == Type::real ? binary(TapeOp::floor_div_r) : lower_integer(id, binary(TapeOp::floor_div_i));
      case Op::mod:
        return i.type == Type::real ? binary(TapeOp::mod_r) : lower_integer(id, binary(TapeOp::mod_i));
      case Op::abs:
        return i.type == Type::real ? unary(TapeOp::abs_r) : lower_integer(id, unary(TapeOp::abs_i));
      case Op::min:
        return i.type == Type::real ? binary(TapeOp::min_r) : lower_integer(id, binary(TapeOp::min_i));
      case Op::max:
        return i.type == Type::real ? binary(TapeOp::max_r) : lower_integer(id, binary(TapeOp::max_i));
      case Op::exp:
        return unary(TapeOp::exp);
      case Op::exp2:
        return unary(TapeOp::exp2);
      case Op::log:
        return unary(TapeOp::log);
      case Op::log2:
        return unary(TapeOp::log2);
      case Op::sqrt:
        return unary(TapeOp::sqrt);
      case Op::rsqrt:
        return unary(TapeOp::rsqrt);
      case Op::tanh:
        return unary(TapeOp::tanh);
      case Op::sigmoid:
        return unary(TapeOp::sigmoid);
      case Op::sin:
        return unary(TapeOp::sin);
      case Op::cos:
        return unary(TapeOp::cos);
      case Op::tan:
        return unary(TapeOp::tan);
      case Op::erf:
        return unary(TapeOp::erf);
      case Op::floor:
        return unary(TapeOp::floor);
      case Op::pow:
        return binary(TapeOp::pow);
      case Op::eq:
        return compare(i, TapeOp::eq_r, TapeOp::eq_i);
      case Op::ne:
        return compare(i, TapeOp::ne_r, TapeOp::ne_i);
      case Op::lt:
        return compare(i, TapeOp::lt_r, TapeOp::lt_i);
      case Op::le:
        return compare(i, TapeOp::le_r, TapeOp::le_i);
      case Op::logical_and:
        return binary(TapeOp::and_b);
      case Op::logical_or:
        return binary(TapeOp::or_b);
      case Op::logical_not:
        return unary(TapeOp::not_b);
      case Op::logical_xor:
        return binary(TapeOp::xor_b);
      case Op::select: {
        const NodeId chosen = b_.make(pick(TapeOp::select_r, TapeOp::select_i), arg(0), arg(1), arg(2), wide && i.type == Type::real);
        return i.type == Type::integer ? lower_integer(id, chosen) : chosen;
      }
      case Op::to_real:
        if (is_real(i.arg[0])) return arg(0);
        return b_.make(instr(i.arg[0]).type == Type::boolean ? TapeOp::real_of_b : TapeOp::real_of_i, plain(i.arg[0]), none, none, wide);
      case Op::to_integer:
        switch (instr(i.arg[0]).type) {
          case Type::real:
            return lower_integer(id, discrete(TapeOp::integer_of_r, i.arg[0], -1));
          case Type::boolean:
            return lower_integer(id, b_.make(TapeOp::integer_of_b, plain(i.arg[0])));
          case Type::integer:
            break;
        }
        linear_[static_cast<std::size_t>(id)] = linear_of(i.arg[0]);
        return plain(i.arg[0]);
      case Op::to_boolean:
        switch (instr(i.arg[0]).type) {
          case Type::real:
            return discrete(TapeOp::boolean_of_r, i.arg[0], -1);
          case Type::integer:
            return b_.make(TapeOp::boolean_of_i, plain(i.arg[0]));
          case Type::boolean:
            break;
        }
        return plain(i.arg[0]);
    }
    return none;
  }

  /// A step from reals to integers or booleans, in double when its operands are.
  NodeId discrete(TapeOp op, ValueId a, ValueId b) {
    const bool wide = wide_[static_cast<std::size_t>(a)] != none && (b < 0 || wide_[static_cast<std::size_t>(b)] != none);
    const auto get = [&](ValueId id) { return id < 0 ? none : wide ? exact(id) : plain(id); };
    return b_.make(op, get(a), get(b), none, wide);
  }

  NodeId compare(const Instr& i, TapeOp real, TapeOp integer) {
    if (is_real(i.arg[0])) return discrete(real, i.arg[0], i.arg[1]);
    // sum(keys, diagonals) op -sum(lanes and uniform values), where all terms are of these ranks.
    const NodeId a = plain(i.arg[0]), b = plain(i.arg[1]);
    const Sums sums = sums_by_rank(scoring::combine(linear_of(i.arg[0]), linear_of(i.arg[1]), -1));
    const NodeId left = total({sums[Rank::key], sums[Rank::diagonal], sums[Rank::full]});
    const NodeId right = negated(total({sums[Rank::lane], sums[Rank::uniform]}));
    if (b_[left].rank == Rank::full) return b_.make(integer, a, b);
    return b_.make(integer, left, right);
  }

  NodeId lower_read(ValueId id, bool wide) {
    const Instr& i = instr(id);
    std::vector<NodeId> index;
    for (ValueId v : i.index) index.push_back(plain(v));
    const int place = b_.place(i.param, std::move(index), b_.source().params[static_cast<std::size_t>(i.param)]);
    switch (i.type) {
      case Type::real:
        return b_.read(TapeOp::read_r, place, wide);
      case Type::integer:
        return lower_integer(id, b_.read(TapeOp::read_i, place, false));
      case Type::boolean:
        break;
    }
    return b_.read(TapeOp::read_b, place, false);
  }

  // ---- integers as sums ----

  const Linear& linear_of(ValueId id) const { return linear_[static_cast<std::size_t>(id)]; }

  /// Notes how an integer is a sum and returns its node: `atom` when it is none, else a node of the sum.
  NodeId lower_integer(ValueId id, NodeId atom) {
    const Instr& i = instr(id);
    Linear& linear = linear_[static_cast<std::size_t>(id)];
    if (atom != none) {
      linear.terms = {{i.op == Op::q_idx ? q_ : i.op == Op::kv_idx ? kv_ : id, 1}};
      atoms_[linear.terms[0].atom] = atom;
      return atom;
    }
    switch (i.op) {
      case Op::integer_const:
        linear.constant = i.integer;
        break;
      case Op::add:
        linear = scoring::combine(linear_of(i.arg[0]), linear_of(i.arg[1]), 1);
        break;
      case Op::sub:
        linear = scoring::combine(linear_of(i.arg[0]), linear_of(i.arg[1]), -1);
        break;
      case Op::neg:
        linear = scoring::scaled(linear_of(i.arg[0]), -1);
        break;
      default:
        if (linear_of(i.arg[0]).is_constant())
          linear = scoring::scaled(linear_of(i.arg[1]), linear_of(i.arg[0]).constant);
        else if (linear_of(i.arg[1]).is_constant())
          linear = scoring::scaled(linear_of(i.arg[0]), linear_of(i.arg[1]).constant);
        else
          return lower_integer(id, b_.make(TapeOp::mul_i, plain(i.arg[0]), plain(i.arg[1])));
    }
    return sum(linear);
  }

  struct Sums {
    std::array<NodeId, 5> of{none, none, none, none, none};
    NodeId& operator[](Rank rank) { return of[static_cast<std::size_t>(rank)]; }
    NodeId operator[](Rank rank) const { return of[static_cast<std::size_t>(rank)]; }
  };

  NodeId plus(NodeId a, NodeId b) { return a == none ? b : b == none ? a : b_.make(TapeOp::add_i, a, b); }
  NodeId times(NodeId a, std::int64_t factor) {
    return factor == 1 ? a : factor == -1 ? b_.make(TapeOp::neg_i, a) : b_.make(TapeOp::mul_i, a, b_.integer(factor));
  }
  NodeId negated(NodeId a) {
    if (b_[a].op == TapeOp::constant_i && b_[a].integer != lowest) return b_.integer(-b_[a].integer);
    return b_[a].op == TapeOp::neg_i ? b_[a].arg[0] : b_.make(TapeOp::neg_i, a);
  }

  /// The sum of each rank, so that ranks meet as late as possible; c (kv - q) is one diagonal term.
  Sums sums_by_rank(const Linear& linear) {
    std::int64_t of_q = 0, of_kv = 0;
    for (const Linear::Term& term : linear.terms) {
      if (term.atom == q_) of_q = term.coefficient;
      if (term.atom == kv_) of_kv = term.coefficient;
    }
    const bool diagonal = b_.source().one_head && of_kv != 0 && of_kv == -of_q;
    Sums sums;
    if (diagonal) sums[Rank::diagonal] = times(b_.add({.op = TapeOp::distance, .rank = Rank::diagonal}), of_kv);
    for (const Linear::Term& term : linear.terms) {
      if (diagonal && (term.atom == q_ || term.atom == kv_)) continue;
      const NodeId atom = atoms_.at(term.atom);
      const Rank rank = b_[atom].rank;
      sums[rank] = plus(sums[rank], times(atom, term.coefficient));
    }
    if (linear.constant != 0) sums[Rank::uniform] = plus(sums[Rank::uniform], b_.integer(linear.constant));
    return sums;
  }
  NodeId total(std::initializer_list<NodeId> parts) {
    NodeId sum = none;
    for (NodeId part : parts) sum = plus(sum, part);
    return sum == none ? b_.integer(0) : sum;
  }
  NodeId sum(const Linear& linear) {
    const Sums s = sums_by_rank(linear);
    // Uniform parts join the array that is smallest.
    for (Rank rank : {Rank::lane, Rank::key, Rank::diagonal})
      if (s[rank] != none)
        return total({plus(s[rank], s[Rank::uniform]), rank == Rank::lane ? s[Rank::key] : none,
                      rank != Rank::diagonal ? s[Rank::diagonal] : none, s[Rank::full]});
    return total({s[Rank::full], s[Rank::uniform]});
  }

  // ---- constant factors ----

  /// value * factor, the factor pushed to where it costs least: into constants, lower ranks and the scale of the dot products.
  NodeId scaled(ValueId id, double factor, int depth) {
    const Instr& i = instr(id);
    if (i.op == Op::real_const) return b_.real(i.real * factor, false);
    if (i.op == Op::score) {
      const double scale = b_.source().scale * factor;
      return scale == 1 ? b_.dots() : b_.make(TapeOp::mul_r, b_.dots(), b_.real(scale, false));
    }
    const NodeId plain_value = plain(id);
    if (factor == 1 && plain_value != none) return plain_value;
    const auto multiplied = [&] { return b_.make(TapeOp::mul_r, plain_value, b_.real(factor, false)); };
    if (b_[plain_value].rank != Rank::full || depth > 32) return multiplied();
    const auto part = [&](int k, double by) { return scaled(i.arg[static_cast<std::size_t>(k)], by, depth + 1); };
    switch (i.op) {
      case Op::add:
        return b_.make(TapeOp::add_r, part(0, factor), part(1, factor));
      case Op::sub:
        return b_.make(TapeOp::sub_r, part(0, factor), part(1, factor));
      case Op::neg:
        return scaled(i.arg[0], -factor, depth + 1);
      case Op::min:
        return factor > 0 ? b_.make(TapeOp::min_r, part(0, factor), part(1, factor)) : multiplied();
      case Op::max:
        return factor > 0 ? b_.make(TapeOp::max_r, part(0, factor), part(1, factor)) : multiplied();
      case Op::select:
        return b_.make(TapeOp::select_r, plain(i.arg[0]), part(1, factor), part(2, factor));
      case Op::mul: {
        for (int k : {0, 1})
          if (instr(i.arg[static_cast<std::size_t>(k)]).op == Op::real_const)
            return part(1 - k, factor * instr(i.arg[static_cast<std::size_t>(k)]).real);
        const int to = b_[plain(i.arg[0])].rank != Rank::full || instr(i.arg[0]).op == Op::score ? 0 : 1;
        return b_.make(TapeOp::mul_r, part(to, factor), plain(i.arg[static_cast<std::size_t>(1 - to)]));
      }
      case Op::div:
        if (instr(i.arg[1]).op == Op::real_const && std::isnormal(1 / instr(i.arg[1]).real)) return part(0, factor / instr(i.arg[1]).real);
        return b_.make(TapeOp::div_r, part(0, factor), plain(i.arg[1]));
      default:
        return multiplied();
    }
  }

  Builder& b_;
  const Program& program_;
  std::vector<NodeId> narrow_, wide_;  ///< nodes of each value, in the tile's precision and in double
  std::vector<Linear> linear_;         ///< of the integer values
  std::map<ValueId, NodeId> atoms_;
  ValueId q_ = -1, kv_ = -1;
};

std::optional<Lowering::Ranges> Lowering::ranges(ValueId id) {
  const Instr& i = instr(id);
  const auto below_full = [&](NodeId node) { return b_[node].rank == Rank::uniform || b_[node].rank == Rank::lane; };
  const NodeId here = plain(id);
  if (below_full(here)) return Ranges{{}, {b_.make(TapeOp::select_i, here, b_.integer(highest), b_.integer(lowest))}};
  if (i.op == Op::logical_and) {
    auto a = ranges(i.arg[0]), b = ranges(i.arg[1]);
    if (!a || !b) return std::nullopt;
    a->first.insert(a->first.end(), b->first.begin(), b->first.end());
    a->last.insert(a->last.end(), b->last.begin(), b->last.end());
    return a;
  }
  if (i.op == Op::logical_or) {
    auto a = ranges(i.arg[0]), b = ranges(i.arg[1]);
    if (!a || !b || a->first.size() + a->last.size() != 1 || b->first.size() + b->last.size() != 1 || a->last.size() != b->last.size())
      return std::nullopt;
    if (a->last.empty()) return Ranges{{b_.make(TapeOp::min_i, a->first[0], b->first[0])}, {}};
    return Ranges{{}, {b_.make(TapeOp::max_i, a->last[0], b->last[0])}};
  }
  if (i.op != Op::lt && i.op != Op::le && i.op != Op::eq) return std::nullopt;
  if (instr(i.arg[0]).type != Type::integer) return std::nullopt;

  // c * kv_idx + rest (lt, le, eq) 0 with c = 1 or -1; |x| <= r is x <= r and -x <= r.
  const auto half_lines = [&](Linear linear, Op op, Ranges& out) {
    std::int64_t of_kv = 0;
    std::erase_if(linear.terms, [&](const Linear::Term& term) {
      if (term.atom != kv_) return false;
      of_kv = term.coefficient;
      return true;
    });
    if (of_kv != 1 && of_kv != -1) return false;
    const NodeId rest = sum(linear);
    if (!below_full(rest)) return false;
    const bool inclusive = op != Op::lt;
    if (of_kv == 1 || op == Op::eq) out.last.push_back(plus(of_kv == 1 ? negated(rest) : rest, inclusive ? b_.integer(1) : none));
    if (of_kv == -1 || op == Op::eq) out.first.push_back(plus(of_kv == -1 ? rest : negated(rest), inclusive ? none : b_.integer(1)));
    return true;
  };
  Ranges out;
  const Linear linear = scoring::combine(linear_of(i.arg[0]), linear_of(i.arg[1]), -1);
  for (const Linear::Term& term : linear.terms) {
    if (instr(term.atom).op != Op::abs || term.coefficient != 1 || i.op == Op::eq) continue;
    Linear rest = linear;
    std::erase_if(rest.terms, [&](const Linear::Term& t) { return t.atom == term.atom; });
    const Linear& inside = linear_of(instr(term.atom).arg[0]);
    if (half_lines(scoring::combine(rest, inside, 1), i.op, out) && half_lines(scoring::combine(rest, inside, -1), i.op, out)) return out;
    return std::nullopt;
  }
  if (!half_lines(linear, i.op, out)) return std::nullopt;
  return out;
}

}  // namespace

CompiledTape compile_forward(const TapeSource& source, bool masked) {
  Builder builder(source);
  NodeId score = builder.dots();
  if (!source.score->forward.empty()) {
    Lowering lowering(builder, source.score->forward);
    score = lowering.value(source.score->forward.outputs[0], std::numbers::log2e);
  }
  if (masked && !source.score->mask.empty()) {
    Lowering lowering(builder, source.score->mask);
    score = builder.make(TapeOp::select_r, lowering.plain(source.score->mask.outputs[0]), score,
                         builder.real(-std::numeric_limits<double>::infinity(), false));
  }
  if (builder[score].space != Space::none || builder[score].rank != Rank::full)
    score = builder.make_ranked(TapeOp::copy_r, Rank::full, score);
  return builder.finish({}, score);
}

CompiledTape compile_backward(const TapeSource& source, bool& reads_dots) {
  Builder builder(source);
  const scoring::ScoreProgram& score = *source.score;
  Lowering lowering(builder, score.backward);
  const NodeId ds = builder.ds();
  std::vector<NodeId> roots;
  for (const scoring::TrainableRead& read : score.reads) {
    TapeLayout contiguous{score.params[static_cast<std::size_t>(read.param)].shape, {}};
    contiguous.strides.assign(contiguous.sizes.size(), 1);
    for (std::size_t d = contiguous.sizes.size(); d-- > 1;) contiguous.strides[d - 1] = contiguous.strides[d] * contiguous.sizes[d];
    std::vector<NodeId> index;
    for (ValueId v : read.index) index.push_back(lowering.plain(v));
    const int place = builder.place(read.param, std::move(index), contiguous);
    const Rank rank = builder.rank_of_place(place);
    const NodeId factor = lowering.plain(read.factor);
    const bool plain_sum = lowering.is_real_const(read.factor, 1);
    const auto times_factor = [&](NodeId value) { return plain_sum ? value : builder.make(TapeOp::guarded_mul, value, factor); };

    // The factor is applied after the sum where it does not vary along it.
    const Rank factor_rank = builder[factor].rank;
    const bool afterwards = factor_rank == Rank::uniform || factor_rank == rank || (rank == Rank::uniform && factor_rank == Rank::lane);
    NodeId value = afterwards && rank != Rank::full ? ds : times_factor(ds);
    switch (rank) {
      case Rank::uniform:
        value = builder.make_ranked(TapeOp::sum_keys, Rank::lane, value);
        if (factor_rank == Rank::lane) value = times_factor(value);
        value = builder.make_ranked(TapeOp::sum_all, Rank::uniform, value);
        if (factor_rank == Rank::uniform) value = times_factor(value);
        break;
      case Rank::lane:
        value = builder.make_ranked(TapeOp::sum_keys, Rank::lane, value);
        break;
      case Rank::key:
        value = builder.make_ranked(TapeOp::sum_lanes, Rank::key, value);
        break;
      case Rank::diagonal:
        value = builder.make_ranked(TapeOp::sum_diagonals, Rank::diagonal, value);
        break;
      case Rank::full:
        break;
    }
    if (afterwards && rank != Rank::full && rank != Rank::uniform) value = times_factor(value);
    roots.push_back(builder.make_ranked(TapeOp::accumulate, rank, value, place));
  }
  NodeId output = none;
  if (!lowering.is_real_const(score.dscore, 1)) {
    output = builder.make_output(TapeOp::guarded_mul, ds, lowering.plain(score.dscore));
  }
  CompiledTape tape = builder.finish(std::move(roots), output);
  reads_dots = std::any_of(tape.steps.begin(), tape.steps.end(), [](const TapeStep& step) {
    return step.a.space == Space::input || step.b.space == Space::input || step.c.space == Space::input;
  });
  return tape;
}

std::optional<CompiledTape> compile_ranges(const TapeSource& source) {
  if (source.score->mask.empty()) return std::nullopt;
  Builder builder(source);
  Lowering lowering(builder, source.score->mask);
  const auto ranges = lowering.ranges(source.score->mask.outputs[0]);
  if (!ranges) return std::nullopt;
  const auto fold = [&](const std::vector<NodeId>& nodes, TapeOp op, std::int32_t start) {
    NodeId result = nodes.empty() ? builder.integer(start) : nodes[0];
    for (std::size_t i = 1; i < nodes.size(); ++i) result = builder.make(op, result, nodes[i]);
    return builder.make_ranked(TapeOp::copy_i, Rank::lane, result);
  };
  const NodeId first = fold(ranges->first, TapeOp::max_i, lowest), last = fold(ranges->last, TapeOp::min_i, highest);
  CompiledTape tape = builder.finish({first, last}, none);
  tape.first = builder.slot_of(first);
  tape.last = builder.slot_of(last);
  return tape;
}

std::string CompiledTape::text() const {
  static constexpr const char* ops[] = {
#define FOVEAL_X(op) #op,
      FOVEAL_TAPE_OPS(FOVEAL_X)
#undef FOVEAL_X
  };
  static constexpr const char* spaces[] = {"",         "constant", "uniform", "lane", "key",   "spread",
                                           "diagonal", "strip",    "q_idx",   "head", "input", "output"};
  static constexpr const char* ranks[] = {"uniform", "lane", "key", "diagonal", "full"};
  std::ostringstream out;
  const auto print = [&](TapeOperand operand) {
    if (operand.space == Space::constant) {
      out << ' ' << constants[static_cast<std::size_t>(operand.slot)].value;
      return;
    }
    out << ' ' << spaces[static_cast<std::size_t>(operand.space)];
    if (operand.space >= Space::uniform && operand.space <= Space::strip) out << operand.slot;
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const TapeStep& step = steps[i];
    const int at = static_cast<int>(i);
    out << (at < program.strip_begin ? "before "
            : at < program.strip_end ? "strip "
                                     : "after ")
        << ranks[static_cast<std::size_t>(step.rank)] << ' ' << ops[static_cast<std::size_t>(step.op)] << (step.wide ? " wide" : "");
    print(step.out);
    out << " =";
    for (TapeOperand operand : {step.a, step.b, step.c})
      if (operand.space != Space::none) print(operand);
    if (step.op == TapeOp::read_r || step.op == TapeOp::read_i || step.op == TapeOp::read_b || step.op == TapeOp::accumulate) {
      const TapePlace& place = places[static_cast<std::size_t>(step.place)];
      out << " param" << place.param << " at";
      for (int d = 0; d < place.rank; ++d) print(place.dims[d].index);
    }
    out << '\n';
  }
  return out.str();
}

}  // namespace foveal::cpu
