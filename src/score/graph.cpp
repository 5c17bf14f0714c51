#include "score/graph.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "base/check.h"
#include "score/diagonals.h"
#include "score/node.h"
#include "score/op_table.h"

namespace foveal::scoring {
namespace {

std::size_t mix(std::size_t seed, std::size_t value) { return (seed ^ value) * 0x9e3779b97f4a7c15u + (seed >> 29); }

/// The Depends set of a symbol; seqlen_q and seqlen_kv vary with the batch.
std::uint8_t depends_on_symbol(Op op) {
  static constexpr std::array<std::uint8_t, 7> depends{depends_score, depends_batch, depends_head, depends_q,
                                                       depends_kv,    depends_batch, depends_batch};
  return op == Op::score || is_position(op) ? depends[static_cast<std::size_t>(op) - static_cast<std::size_t>(Op::score)] : 0;
}

std::string describe(const Param::Info& param) { return to_string(param.type) + base::shape_text(param.shape); }

}  // namespace

Graph::Graph(const std::vector<Param>& params, bool sealed) : interned_(64, Hash{this}, Equal{this}), sealed_(false) {
  for (const Param& param : params) {
    FOVEAL_CHECK(param.present(), "params: entry ", params_.size(), " is an absent Param");
    param_position(*param.info());
  }
  sealed_ = sealed;
}

std::size_t Graph::Hash::operator()(ValueId id) const {
  const Instr& instr = (*graph)[id];
  std::size_t seed = mix(static_cast<std::size_t>(instr.op), static_cast<std::size_t>(instr.type));
  for_each_operand(instr, [&seed](ValueId operand) { seed = mix(seed, static_cast<std::size_t>(operand)); });
  seed = mix(seed, std::bit_cast<std::uint64_t>(instr.real));
  seed = mix(seed, static_cast<std::size_t>(instr.integer));
  return mix(seed, static_cast<std::size_t>(instr.param));
}

bool Graph::Equal::operator()(ValueId a, ValueId b) const {
  const Instr& x = (*graph)[a];
  const Instr& y = (*graph)[b];
  return x.op == y.op && x.type == y.type && x.arg == y.arg && x.index == y.index && x.integer == y.integer && x.param == y.param &&
         std::bit_cast<std::uint64_t>(x.real) == std::bit_cast<std::uint64_t>(y.real);
}

ValueId Graph::intern(Instr instr) {
  const ValueId id = code_.add(std::move(instr));
  if (auto [known, inserted] = interned_.insert(id); !inserted) {
    code_.pop_back();
    return *known;
  }
  if (static_cast<std::size_t>(code_.size()) > max_values)
    base::fail(ErrorCode::invalid_argument, "expression: more than ", max_values, " operations; expected a smaller score or mask");
  std::uint8_t depends = depends_on_symbol(code_[id].op);
  std::int32_t depth = 0;
  bool is_long = code_[id].op == Op::read;
  for_each_operand(code_[id], [&](ValueId operand) {
    depends |= depends_[operand];
    depth = std::max(depth, depth_[operand] + 1);
    is_long = is_long || is_long_[operand] != 0 || (code_[id].op == Op::to_integer && code_[operand].type == Type::real);
  });
  is_long_.add(is_long && code_[id].type == Type::integer);
  depends_.add(depends);
  depth_.add(depth);
  bounds_.add(bounds_of(code_[id]));
  may_vanish_.add(vanishes(code_[id]));
  return id;
}

ValueId Graph::intern(Op op, ValueId a, ValueId b, ValueId c) {
  return intern({.op = op, .type = result_type(op, a, b), .arg = {a, b, c}});
}

/// Positions have 31 bits, elements of parameters up to 64.
Interval Graph::bounds_of(const Instr& instr) const {
  constexpr Interval any{-0x1p63, 0x1p63};
  if (instr.type == Type::boolean) return {0, 1};
  if (instr.op == Op::integer_const) return {static_cast<double>(instr.integer), static_cast<double>(instr.integer)};
  if (is_position(instr.op)) return {0, 0x1p31 - 1};
  if (instr.type == Type::real || row(instr.op).interval == nullptr || type(instr.arg[0]) == Type::real) return any;
  const auto of = [this](ValueId id) { return id < 0 ? Interval{0, 0} : bounds_[id]; };
  const Interval bounds = row(instr.op).interval(instr.type, of(instr.arg[0]), of(instr.arg[1]), of(instr.arg[2]));
  return {std::max(bounds.low, any.low), std::min(bounds.high, any.high)};
}

bool Graph::vanishes(const Instr& instr) const {
  const auto [a, b, c] = instr.arg;
  if (instr.type != Type::real) return false;
  switch (instr.op) {
    case Op::real_const:
      return instr.real == 0;
    case Op::select:
      return may_vanish_[b] || may_vanish_[c];
    case Op::neg:
      return may_vanish_[a];
    case Op::add:
    case Op::sub:
      return may_vanish_[a] && may_vanish_[b];
    case Op::mul:
      return may_vanish_[a] || may_vanish_[b];
    default:
      return false;
  }
}

double Graph::reach(const Linear& sum) const {
  double reach = std::abs(static_cast<double>(sum.constant));
  for (const Linear::Term& term : sum.terms)
    reach += std::abs(static_cast<double>(term.coefficient)) * std::max(-bounds_[term.atom].low, bounds_[term.atom].high);
  return reach;
}

Type Graph::result_type(Op op, ValueId a, ValueId b) const {
  const std::string_view signature = row(op).signature;
  switch (signature.back()) {
    case 'r':
      return Type::real;
    case 'i':
      return Type::integer;
    case 'b':
      return Type::boolean;
    default:
      return type(op == Op::select ? b : a);
  }
}

ValueId Graph::real(double value) {
  return intern({.op = Op::real_const, .type = Type::real, .real = value == 0 ? 0.0 : value});  // -0 and 0 are one constant
}

ValueId Graph::integer(std::int64_t value) { return intern({.op = Op::integer_const, .type = Type::integer, .integer = value}); }

ValueId Graph::boolean(bool value) { return intern({.op = Op::boolean_const, .type = Type::boolean, .integer = value}); }

ValueId Graph::symbol(Op op) { return intern({.op = op, .type = op == Op::score ? Type::real : Type::integer}); }

std::int32_t Graph::param_position(const Param::Info& param) {
  if (auto known = param_by_name_.find(param.name); known != param_by_name_.end()) {
    const Param::Info& other = params_[static_cast<std::size_t>(known->second)];
    FOVEAL_CHECK(other.shape == param.shape && other.type == param.type, "parameter ", param.name, ": two different ones of this name, ",
                 describe(other), " and ", describe(param), "; expected one");
    return known->second;
  }
  FOVEAL_CHECK(!sealed_, "parameter ", param.name, ": read by the score or the mask but not bound; expected a binding of ", param.name,
               ": ", describe(param), " in params");
  const auto position = static_cast<std::int32_t>(params_.size());
  params_.push_back(param);
  param_by_name_.emplace(param.name, position);
  return position;
}

ValueId Graph::read(const Param::Info& param, std::vector<ValueId> index) {
  return intern({.op = Op::read, .type = param.type, .param = param_position(param), .index = std::move(index)});
}

namespace {

/// Literally 0. Expressions that merely fold to 0 are accepted: printed text may fold further when it is parsed again.
bool is_written_zero(const Node& node) {
  if (node.op == Op::to_integer || node.op == Op::to_real) return is_written_zero(*node.args[0]);
  return (node.op == Op::integer_const || node.op == Op::boolean_const) && node.integer == 0;
}

}  // namespace

ValueId Graph::lower(const Expr& expr) {
  FOVEAL_CHECK(expr.present(), "expression: absent");
  std::unordered_map<const Node*, ValueId> lowered;
  std::vector<std::pair<const Node*, std::size_t>> path{{expr.node().get(), 0}};
  while (!path.empty()) {
    auto& [node, next] = path.back();
    if (next < node->args.size()) {
      const Node* arg = node->args[next++].get();
      if (!lowered.contains(arg)) path.emplace_back(arg, 0);
      continue;
    }
    const Node* done = node;
    path.pop_back();
    std::vector<ValueId> args;
    for (const auto& arg : done->args) args.push_back(lowered.at(arg.get()));
    args.resize(std::max<std::size_t>(args.size(), 3), -1);
    ValueId id = -1;
    switch (done->op) {
      case Op::real_const:
        id = real(done->real);
        break;
      case Op::integer_const:
        id = integer(done->integer);
        break;
      case Op::boolean_const:
        id = boolean(done->integer != 0);
        break;
      case Op::read:
        id = read(*done->param, {args.begin(), args.begin() + static_cast<std::ptrdiff_t>(done->args.size())});
        break;
      case Op::floor_div:
      case Op::mod:
        FOVEAL_CHECK(type(args[1]) != Type::integer || !is_written_zero(*done->args[1]), "operator ", row(done->op).text,
                     ": an integer divided by the constant 0");
        [[fallthrough]];
      default:
        id = row(done->op).arity == 0 ? symbol(done->op) : make(done->op, args[0], args[1], args[2]);
        break;
    }
    lowered.emplace(done, id);
  }
  return lowered.at(expr.node().get());
}

bool Graph::is_const(ValueId id) const {
  const Op op = (*this)[id].op;
  return op == Op::real_const || op == Op::integer_const || op == Op::boolean_const;
}

std::optional<double> Graph::const_value(ValueId id) const {
  const Instr& instr = (*this)[id];
  if (instr.op == Op::real_const) return instr.real;
  if (is_const(id)) return static_cast<double>(instr.integer);
  return std::nullopt;
}

Linear Graph::linear(ValueId id) const {
  if (auto known = linear_.find(id); known != linear_.end()) return known->second;
  if (is_const(id)) return Linear{{}, (*this)[id].integer};
  return Linear{{{id, 1}}, 0};
}

/// By everything but operands.
int Graph::compare_heads(ValueId a, ValueId b) const {
  const Instr& x = (*this)[a];
  const Instr& y = (*this)[b];
  const auto key = [&](ValueId id, const Instr& instr) {
    return std::array<int, 5>{is_const(id), !(depends_[id] & depends_score), -depth_[id], static_cast<int>(instr.op),
                              static_cast<int>(instr.type)};
  };
  const auto key_x = key(a, x), key_y = key(b, y);
  if (key_x != key_y) return key_x < key_y ? -1 : 1;
  if (x.op == Op::real_const) return x.real < y.real ? -1 : 1;
  if (is_const(a)) return x.integer < y.integer ? -1 : 1;
  if (x.param == y.param) return 0;
  return params_[static_cast<std::size_t>(x.param)].name < params_[static_cast<std::size_t>(y.param)].name ? -1 : 1;
}

// Independent of the order in which values were made. Interned values with different ids differ in some operand with different ids, so one
// path downwards decides.
int Graph::compare(ValueId a, ValueId b) const {
  constexpr int far = 16;  // long chains that are equal but for their ends are compared again for each link
  const auto pair = [](ValueId x, ValueId y) { return static_cast<std::uint64_t>(x) << 32 | static_cast<std::uint32_t>(y); };
  const std::uint64_t start = pair(a, b);
  int steps = 0, order = 0;
  for (; a != b && order == 0; ++steps) {
    if (const auto known = steps > 0 ? compared_.find(pair(a, b)) : compared_.end(); known != compared_.end()) {
      order = known->second;
    } else {
      order = compare_heads(a, b);
      if (order != 0) continue;
      const Instr& x = (*this)[a];
      const Instr& y = (*this)[b];
      a = b = -1;
      for (std::size_t i = 0; i < x.arg.size() && a == b; ++i) a = x.arg[i], b = y.arg[i];
      for (std::size_t i = 0; i < x.index.size() && a == b; ++i) a = x.index[i], b = y.index[i];
    }
  }
  if (steps > far) compared_.emplace(start, order);
  return order;
}

bool Graph::before(ValueId a, ValueId b) const { return compare(a, b) < 0; }

void Graph::sort_pair(ValueId& a, ValueId& b) const {
  if (before(b, a)) std::swap(a, b);
}

Program Graph::program(const std::vector<ValueId>& outputs) const {
  base::IdVector<ValueId> new_id;
  return program(outputs, new_id);
}

Program Graph::program(const std::vector<ValueId>& outputs, base::IdVector<ValueId>& new_id) const {
  const base::IdVector<char> needed = ancestors(*this, outputs);
  const base::IdVector<char> along_diagonals = functions_of_difference(*this, needed.size() - 1);
  Program program;
  new_id.assign(code_.size(), -1);
  for (ValueId id = 0; id < needed.size(); ++id) {
    if (!needed[id]) continue;
    if (is(id, Op::stop_gradient)) {
      new_id[id] = new_id[operand(id)];
      continue;
    }
    new_id[id] = program.size();
    Instr& instr = program.code.emplace_back(code_[id]);
    for (ValueId& arg : instr.arg)
      if (arg >= 0) arg = new_id[arg];
    for (ValueId& index : instr.index) index = new_id[index];
    program.depends.push_back(depends_[id]);
    program.along_diagonals.push_back(along_diagonals[id]);
  }
  for (ValueId output : outputs) program.outputs.push_back(new_id[output]);
  return program;
}

}  // namespace foveal::scoring
