#include "score/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "base/check.h"
#include "score/op_table.h"
#include "score/precedence.h"

namespace foveal {
namespace scoring {
namespace {

constexpr int max_inline_size = 1000;  // operations of the expression as a tree; larger ones name their shared parts
constexpr int max_inline_depth = 60;
constexpr int named_every = 40;  // levels of a deep expression, which bounds the parser's nesting

/// How tightly the text of a value binds, as in Python; between the first and the last two: binary_operators.
enum Level : int { comparison_level = -1, unary_level = tightest_binary + 1, atom_level };

Level level_of(const OpRow& row) {
  if (is_comparison(row.op)) return comparison_level;
  if (row.op == Op::neg || row.op == Op::logical_not) return unary_level;
  const BinaryOperator* binary = row.arity == 2 ? binary_operator(row.text) : nullptr;
  return binary ? static_cast<Level>(binary->level) : atom_level;
}

std::string real_text(double value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char digits[32];
  std::string text(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";  // so that it parses as a real
  return text;
}

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph) {}

  std::string operator()(ValueId root) {
    visit(root);
    measure(root);
    std::string definitions;
    for (ValueId id : order_) {
      Text text = write(id);
      if (named_ && id != root && deserves_name(id)) {
        const std::string name = base::join('_', ++names_);
        definitions += name + " = " + text.text + "; ";
        text = {name, atom_level};
      }
      texts_[id] = std::move(text);
    }
    return definitions + texts_[root].text;
  }

 private:
  struct Text {
    std::string text;
    Level level = atom_level;
  };
  struct Facts {
    int uses = 0;
    int depth = 0;
    double tree_size = 1;
  };

  /// Post-order, so that names do not depend on the order in which values were made.
  void visit(ValueId root) {
    std::vector<std::pair<ValueId, bool>> path{{root, false}};
    while (!path.empty()) {
      const auto [id, operands_done] = path.back();
      path.pop_back();
      if (operands_done) {
        order_.push_back(id);
        continue;
      }
      if (facts_.contains(id)) continue;
      facts_[id] = {};
      path.emplace_back(id, true);
      const std::size_t first = path.size();
      for_each_operand(graph_[id], [&](ValueId operand) { path.emplace_back(operand, false); });
      std::reverse(path.begin() + static_cast<std::ptrdiff_t>(first), path.end());
    }
  }

  void measure(ValueId root) {
    for (ValueId id : order_) {
      Facts& facts = facts_[id];
      for_each_operand(graph_[id], [&](ValueId operand) {
        Facts& of_operand = facts_[operand];
        ++of_operand.uses;
        facts.depth = std::max(facts.depth, of_operand.depth + 1);
        facts.tree_size += of_operand.tree_size;
      });
    }
    named_ = facts_[root].tree_size > max_inline_size || facts_[root].depth > max_inline_depth;
  }

  bool deserves_name(ValueId id) {
    const Facts& facts = facts_[id];
    return facts.depth > 0 && (facts.uses > 1 || facts.depth % named_every == 0);
  }

  bool is_cast(ValueId id) const { return graph_[id].op == Op::to_real || graph_[id].op == Op::to_integer; }

  /// An operand's text, parenthesised if it binds less tightly than `least`.
  std::string operand(ValueId id, Level least) {
    const Text& text = texts_[id];
    return text.level < least ? base::join('(', text.text, ')') : text.text;
  }

  /// The operand of a cast that the parser would insert again.
  ValueId without_cast(ValueId id, bool implied) {
    const Type from = is_cast(id) ? graph_.type(graph_[id].arg[0]) : Type::real;
    const bool widens = graph_[id].op == Op::to_real || (graph_[id].op == Op::to_integer && from == Type::boolean);
    if (!is_cast(id) || !implied || !widens || texts_[id].text.front() == '_') return id;
    return graph_[id].arg[0];
  }

  std::string cast_operand(ValueId id, bool implied, Level least) { return operand(without_cast(id, implied), least); }

  std::string call(std::string_view function, std::initializer_list<std::string> args) {
    std::string text(function);
    char separator = '(';
    for (const std::string& arg : args) {
      text += separator;
      if (separator == ',') text += ' ';
      text += arg;
      separator = ',';
    }
    return text + ')';
  }

  Text write(ValueId id) {
    const Instr& instr = graph_[id];
    const OpRow& row = scoring::row(instr.op);
    const auto [a, b, c] = instr.arg;
    switch (instr.op) {
      case Op::real_const:
        return {real_text(instr.real), std::signbit(instr.real) ? unary_level : atom_level};
      case Op::integer_const:
        return {std::to_string(instr.integer), instr.integer < 0 ? unary_level : atom_level};
      case Op::boolean_const:
        return {instr.integer != 0 ? "True" : "False"};
      case Op::read: {
        std::string text = graph_.params()[static_cast<std::size_t>(instr.param)].name + "[";
        for (std::size_t i = 0; i < instr.index.size(); ++i) text += (i ? ", " : "") + cast_operand(instr.index[i], true, comparison_level);
        return {text + "]"};
      }
      case Op::select: {
        const bool cast_b = !is_cast(c), cast_c = !is_cast(b) || is_cast(c);
        const std::string condition = operand(a, comparison_level);
        const std::string if_true = cast_operand(b, cast_b, comparison_level);
        return {call("where", {condition, if_true, cast_operand(c, cast_c, comparison_level)})};
      }
      case Op::neg:
      case Op::logical_not:
        return {std::string(row.text) + operand(a, unary_level), unary_level};
      default:
        break;
    }
    if (row.arity == 0) return {std::string(row.text)};
    if (row.arity == 1) return {call(row.text, {cast_operand(a, row.signature[0] == 'r', comparison_level)})};

    // Two operands: one may rely on promotion by the other instead of its own cast, but not both.
    const bool always = row.signature[0] == 'r';
    const bool cast_a = always || !is_cast(b), cast_b = always || !is_cast(a) || is_cast(b);
    if (instr.op == Op::min && graph_[a].op == Op::max && texts_[a].text.front() != '_') {
      std::string inner = operand(a, comparison_level);  // "max(x, low)"
      return {base::join("clamp", inner.substr(3, inner.size() - 4), ", ", cast_operand(b, cast_b, comparison_level), ')')};
    }
    const Level level = level_of(row);
    if (level == atom_level) {
      const std::string first = cast_operand(a, cast_a, comparison_level);
      return {call(row.text, {first, cast_operand(b, cast_b, comparison_level)})};
    }
    const auto above = static_cast<Level>(level + 1);
    std::string text = cast_operand(a, cast_a, level == comparison_level ? above : level);
    if (const Instr& right = graph_[b]; instr.op == Op::add && right.op == Op::real_const && right.real < 0) {
      return {text + " - " + real_text(-right.real), level};
    }
    text += " ";
    text += row.text;
    text += " ";
    return {text + cast_operand(b, cast_b, above), level};
  }

  const Graph& graph_;
  std::vector<ValueId> order_;
  std::unordered_map<ValueId, Facts> facts_;
  std::unordered_map<ValueId, Text> texts_;
  bool named_ = false;
  int names_ = 0;
};

}  // namespace

std::string print(const Graph& graph, ValueId value) { return Printer(graph)(value); }

std::string print(const Param::Info& param) { return param.name + ": " + to_string(param.type) + base::shape_text(param.shape); }

}  // namespace scoring

std::string to_string(const Expr& expr) {
  scoring::Graph graph;
  return scoring::print(graph, graph.lower(expr));
}

}  // namespace foveal
