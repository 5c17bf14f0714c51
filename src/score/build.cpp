// The operators and functions of Expr: type checks and promotion.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/ascii.h"
#include "base/check.h"
#include "base/enum_name.h"
#include "foveal/score.h"
#include "foveal/tensor.h"
#include "score/names.h"
#include "score/node.h"
#include "score/op_table.h"

namespace foveal {

using scoring::Node;
using scoring::Op;
using NodePtr = std::shared_ptr<const Node>;

const char* to_string(Type type) { return base::enum_name(type, {"boolean", "integer", "real"}); }

namespace scoring {

Node::~Node() {
  NodePtr doomed;  // an intrusive list: destruction must not allocate
  const auto take = [&doomed](std::vector<NodePtr>& args) {
    for (NodePtr& arg : args) {
      const NodePtr own = std::move(arg);  // if one operand occurs twice, the second occurrence is the last holder
      if (own.use_count() != 1) continue;
      own->after = std::move(doomed);
      doomed = own;
    }
  };
  take(args);
  while (doomed) {
    const NodePtr last = std::move(doomed);
    doomed = std::move(last->after);
    take(const_cast<Node&>(*last).args);  // this is its only holder
  }
}

}  // namespace scoring

namespace {

NodePtr constant(Op op, Type type, double real, std::int64_t integer) {
  auto node = std::make_shared<Node>(op, type);
  node->real = real;
  node->integer = integer;
  return node;
}

/// "operator +" or "exp"
std::string title(Op op) {
  const std::string_view text = scoring::row(op).text;
  const bool is_function = base::is_letter(text.front());
  return (is_function ? "" : "operator ") + std::string(text);
}

Type type_of(const Expr& expr, Op op) {
  FOVEAL_CHECK(expr.present(), title(op), ": an operand is an absent Expr");
  return expr.node()->type;
}

NodePtr cast(const Expr& expr, Type to) {
  const Type from = expr.node()->type;
  if (from == to) return expr.node();
  const Op op = to == Type::real ? Op::to_real : to == Type::integer ? Op::to_integer : Op::to_boolean;
  return std::make_shared<Node>(op, to, std::vector<NodePtr>{expr.node()});
}

Expr apply(Op op, Type result, std::vector<NodePtr> args) { return Expr(std::make_shared<Node>(op, result, std::move(args))); }

/// An operation whose operands have signature n or r: promoted to their widest type, at least integer, or to real.
Expr numeric(Op op, std::initializer_list<Expr> operands) {
  const std::string_view signature = scoring::row(op).signature;
  Type common = signature.front() == 'r' ? Type::real : Type::integer;
  for (const Expr& operand : operands) common = std::max(common, type_of(operand, op));
  std::vector<NodePtr> args;
  for (const Expr& operand : operands) args.push_back(cast(operand, common));
  return apply(op, signature.back() == 'b' ? Type::boolean : common, std::move(args));
}

Expr of_integers(Op op, const Expr& a, const Expr& b) {
  const Type x = type_of(a, op), y = type_of(b, op);
  FOVEAL_CHECK(x != Type::real && y != Type::real, title(op), ": operands are ", to_string(x), " and ", to_string(y),
               "; expected integers or booleans (compare a number, as in x != 0)");
  return apply(op, Type::integer, {cast(a, Type::integer), cast(b, Type::integer)});
}

/// Logical for two booleans, bitwise for integers.
Expr junction(Op logical, Op bits, const Expr& a, const Expr& b) {
  if (type_of(a, logical) != Type::boolean || type_of(b, logical) != Type::boolean) return of_integers(bits, a, b);
  return apply(logical, Type::boolean, {a.node(), b.node()});
}

/// Comparisons of two booleans are lowered to logic.
Expr comparison(Op op, const Expr& a, const Expr& b) {
  if (type_of(a, op) == Type::boolean && type_of(b, op) == Type::boolean) {
    switch (op) {
      case Op::eq:
        return !(a ^ b);
      case Op::ne:
        return a ^ b;
      case Op::lt:
        return (!a) & b;
      default:
        return (!a) | b;
    }
  }
  return numeric(op, {a, b});
}

Expr symbol(Op op, Type type) { return apply(op, type, {}); }

}  // namespace

Expr::Expr(bool value) : node_(constant(Op::boolean_const, Type::boolean, 0, value)) {}
Expr::Expr(int value) : Expr(static_cast<long long>(value)) {}
Expr::Expr(long value) : Expr(static_cast<long long>(value)) {}
Expr::Expr(long long value) : node_(constant(Op::integer_const, Type::integer, 0, value)) {}
Expr::Expr(double value) : node_(constant(Op::real_const, Type::real, value, 0)) {
  FOVEAL_CHECK(!std::isnan(value), "Expr: the constant is NaN; expected a number or an infinity");
}

Type Expr::type() const {
  FOVEAL_CHECK(present(), "Expr: absent, it has no type");
  return node_->type;
}

Param::Param(std::string name, std::vector<std::int64_t> shape, Type type) {
  FOVEAL_CHECK(scoring::is_identifier(name), "Param: name \"", name,
               "\" is no identifier; expected a letter or _, then letters, digits or _");
  FOVEAL_CHECK(!scoring::is_reserved(name), "Param: name \"", name, "\" is a symbol, function or keyword of the score language");
  FOVEAL_CHECK(shape.size() <= TensorView::max_rank, "Param ", name, ": rank ", shape.size(), "; expected at most ", TensorView::max_rank);
  for (std::int64_t size : shape) FOVEAL_CHECK(size > 0, "Param ", name, ": a size is ", size, "; expected positive sizes");
  base::check_enumerator({name.c_str(), "type of Param "}, type, Type::real);
  info_ = std::make_shared<const Info>(Info{std::move(name), std::move(shape), type});
}

namespace {

const Param::Info& info_of(const Param& param, const char* what) {
  FOVEAL_CHECK(param.present(), "Param: absent, it has no ", what);
  return *param.info();
}

}  // namespace

const std::string& Param::name() const { return info_of(*this, "name").name; }
const std::vector<std::int64_t>& Param::shape() const { return info_of(*this, "shape").shape; }
Type Param::type() const { return info_of(*this, "type").type; }

Expr Param::read(std::vector<Expr> index) const {
  FOVEAL_CHECK(present(), "Param: absent, it cannot be read");
  FOVEAL_CHECK(index.size() == shape().size(), "parameter ", name(), ": read with ", index.size(), " indices; expected ", shape().size());
  std::vector<NodePtr> args;
  for (std::size_t i = 0; i < index.size(); ++i) {
    FOVEAL_CHECK(index[i].present(), "parameter ", name(), ": index ", i, " is an absent Expr");
    const Type type = index[i].type();
    FOVEAL_CHECK(type != Type::real, "parameter ", name(), ": index ", i, " is real; expected integer (see to_integer and floor_div)");
    args.push_back(cast(index[i], Type::integer));
  }
  auto node = std::make_shared<Node>(Op::read, type(), std::move(args));
  node->param = info_;
  return Expr(NodePtr(std::move(node)));
}

namespace symbols {
// Before static objects of programs, which may be masks and scores: in a static library the order would be the linker's.
#define FOVEAL_EARLY __attribute__((init_priority(200)))
FOVEAL_EARLY const Expr score = symbol(Op::score, Type::real);
FOVEAL_EARLY const Expr batch = symbol(Op::batch, Type::integer);
FOVEAL_EARLY const Expr head = symbol(Op::head, Type::integer);
FOVEAL_EARLY const Expr q_idx = symbol(Op::q_idx, Type::integer);
FOVEAL_EARLY const Expr kv_idx = symbol(Op::kv_idx, Type::integer);
FOVEAL_EARLY const Expr seqlen_q = symbol(Op::seqlen_q, Type::integer);
FOVEAL_EARLY const Expr seqlen_kv = symbol(Op::seqlen_kv, Type::integer);
#undef FOVEAL_EARLY
}  // namespace symbols

Expr operator+(const Expr& a, const Expr& b) { return numeric(Op::add, {a, b}); }
Expr operator-(const Expr& a, const Expr& b) { return numeric(Op::sub, {a, b}); }
Expr operator*(const Expr& a, const Expr& b) { return numeric(Op::mul, {a, b}); }
Expr operator/(const Expr& a, const Expr& b) { return numeric(Op::div, {a, b}); }
Expr operator%(const Expr& a, const Expr& b) { return numeric(Op::mod, {a, b}); }
Expr operator-(const Expr& a) { return numeric(Op::neg, {a}); }
Expr operator==(const Expr& a, const Expr& b) { return comparison(Op::eq, a, b); }
Expr operator!=(const Expr& a, const Expr& b) { return comparison(Op::ne, a, b); }
Expr operator<(const Expr& a, const Expr& b) { return comparison(Op::lt, a, b); }
Expr operator<=(const Expr& a, const Expr& b) { return comparison(Op::le, a, b); }
Expr operator>(const Expr& a, const Expr& b) { return comparison(Op::lt, b, a); }
Expr operator>=(const Expr& a, const Expr& b) { return comparison(Op::le, b, a); }
Expr operator&(const Expr& a, const Expr& b) { return junction(Op::logical_and, Op::bit_and, a, b); }
Expr operator|(const Expr& a, const Expr& b) { return junction(Op::logical_or, Op::bit_or, a, b); }
Expr operator^(const Expr& a, const Expr& b) { return junction(Op::logical_xor, Op::bit_xor, a, b); }
Expr operator<<(const Expr& a, const Expr& b) { return of_integers(Op::shift_left, a, b); }
Expr operator>>(const Expr& a, const Expr& b) { return of_integers(Op::shift_right, a, b); }
Expr operator!(const Expr& a) {
  const Type type = type_of(a, Op::logical_not);
  FOVEAL_CHECK(type == Type::boolean, title(Op::logical_not), ": the operand is ", to_string(type), "; expected boolean");
  return apply(Op::logical_not, Type::boolean, {a.node()});
}
Expr operator~(const Expr& a) { return type_of(a, Op::logical_not) == Type::integer ? Expr(-1) - a : !a; }

Expr floor_div(const Expr& a, const Expr& b) { return numeric(Op::floor_div, {a, b}); }

Expr where(const Expr& condition, const Expr& if_true, const Expr& if_false) {
  const Type type = type_of(condition, Op::select);
  FOVEAL_CHECK(type == Type::boolean, "where: the condition is ", to_string(type), "; expected boolean (compare a number, as in x != 0)");
  const Type common = std::max(type_of(if_true, Op::select), type_of(if_false, Op::select));
  return apply(Op::select, common, {condition.node(), cast(if_true, common), cast(if_false, common)});
}

Expr min(const Expr& a, const Expr& b) { return numeric(Op::min, {a, b}); }
Expr max(const Expr& a, const Expr& b) { return numeric(Op::max, {a, b}); }
Expr clamp(const Expr& x, const Expr& low, const Expr& high) { return min(max(x, low), high); }
Expr abs(const Expr& x) { return numeric(Op::abs, {x}); }
Expr exp(const Expr& x) { return numeric(Op::exp, {x}); }
Expr exp2(const Expr& x) { return numeric(Op::exp2, {x}); }
Expr log(const Expr& x) { return numeric(Op::log, {x}); }
Expr log2(const Expr& x) { return numeric(Op::log2, {x}); }
Expr sqrt(const Expr& x) { return numeric(Op::sqrt, {x}); }
Expr rsqrt(const Expr& x) { return numeric(Op::rsqrt, {x}); }
Expr tanh(const Expr& x) { return numeric(Op::tanh, {x}); }
Expr sigmoid(const Expr& x) { return numeric(Op::sigmoid, {x}); }
Expr sin(const Expr& x) { return numeric(Op::sin, {x}); }
Expr cos(const Expr& x) { return numeric(Op::cos, {x}); }
Expr tan(const Expr& x) { return numeric(Op::tan, {x}); }
Expr erf(const Expr& x) { return numeric(Op::erf, {x}); }
Expr floor(const Expr& x) { return numeric(Op::floor, {x}); }
Expr pow(const Expr& x, const Expr& exponent) { return numeric(Op::pow, {x, exponent}); }

Expr stop_gradient(const Expr& x) {
  return type_of(x, Op::stop_gradient) == Type::real ? numeric(Op::stop_gradient, {x}) : x;  // other types have no derivative
}
Expr to_real(const Expr& x) { return type_of(x, Op::to_real), Expr(cast(x, Type::real)); }
Expr to_integer(const Expr& x) { return type_of(x, Op::to_integer), Expr(cast(x, Type::integer)); }
Expr to_boolean(const Expr& x) { return type_of(x, Op::to_boolean), Expr(cast(x, Type::boolean)); }
Expr to_int32(const Expr& x) {
  FOVEAL_CHECK(type_of(x, Op::to_int32) != Type::real, "to_int32: a real operand; expected an integer");
  return apply(Op::to_int32, Type::integer, {cast(x, Type::integer)});
}
Expr to_float32(const Expr& x) { return numeric(Op::to_float32, {to_real(x)}); }
Expr to_bfloat16(const Expr& x) { return numeric(Op::to_bfloat16, {to_real(x)}); }
Expr to_float16(const Expr& x) { return numeric(Op::to_float16, {to_real(x)}); }

}  // namespace foveal
