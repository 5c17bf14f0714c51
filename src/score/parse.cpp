// Parses the text form of expressions and parameters by recursive descent.
#include "score/parse.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <variant>

#include "base/check.h"
#include "foveal/masks.h"
#include "foveal/score.h"
#include "score/graph.h"
#include "score/lexer.h"
#include "score/names.h"
#include "score/precedence.h"

namespace foveal {
namespace {

using scoring::BinaryOperator;
using scoring::Lexer;
using scoring::Token;

constexpr int max_nesting = 200;  // keeps hostile text from overflowing the stack

/// None: out of range.
template <class Number>
std::optional<Number> number(const Token& token) {
  Number value{};
  const auto [stop, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
  return error == std::errc{} ? std::optional(value) : std::nullopt;
}

struct Function {
  std::string_view name;
  std::variant<Expr (*)(const Expr&), Expr (*)(const Expr&, const Expr&), Expr (*)(const Expr&, const Expr&, const Expr&)> build;

  std::size_t arity() const { return build.index() + 1; }
  Expr operator()(const std::vector<Expr>& x) const {
    if (arity() == 1) return std::get<0>(build)(x[0]);
    return arity() == 2 ? std::get<1>(build)(x[0], x[1]) : std::get<2>(build)(x[0], x[1], x[2]);
  }
};

constexpr Function functions[] = {
    {"floor_div", floor_div},
    {"where", where},
    {"min", min},
    {"max", max},
    {"clamp", clamp},
    {"abs", abs},
    {"exp", exp},
    {"exp2", exp2},
    {"log", log},
    {"log2", log2},
    {"sqrt", sqrt},
    {"rsqrt", rsqrt},
    {"tanh", tanh},
    {"sin", sin},
    {"sigmoid", sigmoid},
    {"cos", cos},
    {"tan", tan},
    {"erf", erf},
    {"floor", floor},
    {"pow", pow},
    {"to_real", to_real},
    {"to_integer", to_integer},
    {"to_boolean", to_boolean},
    {"stop_gradient", stop_gradient},
    {"to_int32", to_int32},
    {"to_float32", to_float32},
    {"to_bfloat16", to_bfloat16},
    {"to_float16", to_float16},
};

const std::map<std::string_view, Expr>& words() {
  static const auto& table = *new std::map<std::string_view, Expr>{
      // never destroyed: destructors of static objects may parse
      {"score", symbols::score},
      {"batch", symbols::batch},
      {"head", symbols::head},
      {"q_idx", symbols::q_idx},
      {"kv_idx", symbols::kv_idx},
      {"seqlen_q", symbols::seqlen_q},
      {"seqlen_kv", symbols::seqlen_kv},
      {"True", Expr(true)},
      {"False", Expr(false)},
      {"inf", Expr(std::numeric_limits<double>::infinity())},
  };
  return table;
}

// Levels of what binds less tightly than the operators of precedence.h.
constexpr int disjunction = -4, conjunction = -3, negation = -2, comparison = -1;

// clang-format takes an operator's name for an operator.
// clang-format off
constexpr BinaryOperator loose_operators[] = {
    {.sign = "or", .level = disjunction, .build = operator|},
    {.sign = "and", .level = conjunction, .build = operator&},
    {.sign = "==", .level = comparison, .build = operator==},
    {.sign = "!=", .level = comparison, .build = operator!=},
    {.sign = "<", .level = comparison, .build = operator<},
    {.sign = "<=", .level = comparison, .build = operator<=},
    {.sign = ">", .level = comparison, .build = operator>},
    {.sign = ">=", .level = comparison, .build = operator>=},
};
// clang-format on

// Threads may have stacks of 64 KiB: what a level of nesting keeps there is little, and what reports errors is called, not inlined.
#define FOVEAL_CALLED [[gnu::noinline]]

class Parser {
 public:
  Parser(std::string_view text, const std::vector<Param>& params, const char* what) : in_(text, what) {
    for (const Param& param : params) {
      FOVEAL_CHECK(param.present(), "parse: an absent Param among params");
      FOVEAL_CHECK(params_.emplace(param.name(), param).second, "parse: two params named ", param.name(), "; expected different names");
    }
  }

  Expr operator()() {
    for (;;) {
      const Token start = in_.token();
      Expr value = conditional();
      if (start.kind == Token::name && in_.is("=") && !value.present()) {  // `_1 = ...;`
        in_.take();
        Expr shared = present(conditional(), start.position);
        in_.expect(";", "after a named value");
        shared_[std::string(start.text)] = std::move(shared);
        continue;
      }
      if (in_.token().kind != Token::end) {
        in_.fail(in_.token().position, base::join("expected an operator or the end, found ", describe(in_.token())));
      }
      return present(std::move(value), start.position);
    }
  }

 private:
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > max_nesting) parser_.fail_as_too_deep();
    }
    ~Nesting() { --parser_.nesting_; }

   private:
    Parser& parser_;
  };

  FOVEAL_CALLED [[noreturn]] void fail_as_too_deep() {
    in_.fail(in_.token().position, base::join("nested deeper than ", max_nesting, " levels"));
  }

  /// Reports an error of build() at `position`.
  template <class Build>
  FOVEAL_CALLED Expr built(std::size_t position, Build&& build) {
    try {
      return build();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      in_.fail(position, error.what());
    }
  }

  Expr built(std::size_t position, const BinaryOperator& row, const Expr& left, const Expr& right) {
    return built(position, [&] { return row.build(left, right); });
  }

  /// The name in `_1 = ...` parses to an absent Expr, which is an error anywhere else.
  Expr present(Expr value, std::size_t position) {
    if (!value.present()) in_.fail(position, "a shared value is used before it is defined");
    return value;
  }

  FOVEAL_CALLED Expr conditional() {
    const Nesting guard(*this);
    const Expr value = operation(disjunction);
    return in_.is("if") ? chosen(value) : value;
  }

  FOVEAL_CALLED Expr chosen(const Expr& value) {
    const std::size_t position = in_.take().position;
    const Expr condition = operation(disjunction);
    in_.expect("else", "after `a if condition`");
    const Expr otherwise = conditional();
    return built(position, [&] { return where(condition, value, otherwise); });
  }

  /// The operator of two operands that comes next, or null.
  const BinaryOperator* infix() const {
    const auto row = std::ranges::find_if(loose_operators, [&](const BinaryOperator& row) { return in_.is(row.sign); });
    if (row != std::end(loose_operators)) return row;
    return in_.token().kind == Token::sign ? scoring::binary_operator(in_.token().text) : nullptr;
  }

  /// Operators that bind at least as tightly as `least`, by precedence climbing. `a < b <= c` means (a < b) & (b <= c).
  FOVEAL_CALLED Expr operation(int least) {
    Expr value = least <= negation && in_.is("not") ? negated() : unary();
    Expr compared;  // the right operand of the comparison before
    for (const BinaryOperator* row = infix(); row != nullptr && row->level >= least; row = infix()) {
      const std::size_t position = in_.take().position;
      Expr right = operation(row->level + 1);
      if (compared.present() && row->level == comparison)
        value = value & built(position, *row, compared, right);
      else
        value = built(position, *row, value, right);
      if (row->level == comparison) compared = std::move(right);
    }
    return value;
  }

  FOVEAL_CALLED Expr negated() {
    const Nesting guard(*this);
    const std::size_t position = in_.take().position;
    const Expr operand = operation(negation);
    return built(position, [&] { return !operand; });
  }

  FOVEAL_CALLED Expr unary() {
    const bool is_sign = in_.is("-") || in_.is("+") || in_.is("~") || in_.is("!");
    return is_sign && in_.token().kind == Token::sign ? with_sign() : power();
  }

  FOVEAL_CALLED Expr with_sign() {
    const Nesting guard(*this);
    const Token sign = in_.take();
    if (sign.text == "-" && in_.token().kind == Token::integer && in_.token().text == "9223372036854775808") {  // fits only with its sign
      const Token least = in_.take();
      if (in_.is("**")) fail_to_fit(least);
      return Expr(std::numeric_limits<std::int64_t>::min());
    }
    const Expr operand = unary();
    return built(sign.position, [&] {
      return sign.text == "-" ? -operand : sign.text == "+" ? Expr(0) + operand : sign.text == "~" ? ~operand : !operand;
    });
  }

  Expr power() {
    Expr base = atom();
    return in_.is("**") ? raised(base) : base;
  }

  FOVEAL_CALLED Expr raised(const Expr& base) {
    const Nesting guard(*this);
    const std::size_t position = in_.take().position;
    const Expr exponent = unary();
    return built(position, [&] { return pow(base, exponent); });
  }

  FOVEAL_CALLED [[noreturn]] void fail_to_fit(const Token& integer) {
    in_.fail(integer.position,
             base::join("the integer ", integer.text.substr(0, 40), " does not fit 64 bits; write it as a real, with a point"));
  }

  FOVEAL_CALLED [[noreturn]] void fail_without_value() {
    in_.fail(in_.token().position, base::join("expected a value, found ", describe(in_.token())));
  }

  FOVEAL_CALLED Expr atom() {
    if (in_.token().kind == Token::name) return named();
    if (!in_.is("(") || in_.token().kind != Token::sign) return literal();
    in_.take();
    Expr value = conditional();
    in_.expect(")", "to close the parenthesis");
    return value;
  }

  FOVEAL_CALLED Expr literal() {
    const Token token = in_.token();
    if (token.kind == Token::integer) {
      if (!number<std::int64_t>(token)) fail_to_fit(token);
      return Expr(*number<std::int64_t>(in_.take()));
    }
    if (token.kind != Token::real) fail_without_value();
    if (!number<double>(token)) in_.fail(token.position, base::join("the number ", token.text.substr(0, 40), " is out of range"));
    return Expr(*number<double>(in_.take()));
  }

  FOVEAL_CALLED Expr named() {
    const Token name = in_.take();
    if (auto param = params_.find(name.text); param != params_.end()) return read(param->second, name.position);
    if (auto word = words().find(name.text); word != words().end()) return word->second;
    if (auto shared = shared_.find(name.text); shared != shared_.end()) return shared->second;
    const auto function = std::ranges::find(functions, name.text, &Function::name);
    if (function != std::end(functions)) return call(name, *function);
    const auto known = std::ranges::find(named_exprs(), name.text, &NamedExpr::name);
    if (known != named_exprs().end()) return call(name, *known);
    const bool defines = in_.is("=") && nesting_ == 1 && name.text.size() > 1 && scoring::is_reserved(name.text);
    if (defines) return {};
    fail_as_unknown(name);
  }

  FOVEAL_CALLED [[noreturn]] void fail_as_unknown(const Token& name) {
    std::string names;
    for (const auto& [text, param] : params_) names += (names.empty() ? "" : ", ") + text;
    in_.fail(name.position, base::join("unknown name \"", name.text.substr(0, 60),
                                       "\"; expected a symbol, a function, a named mask or one of the parameters (",
                                       names.empty() ? "there are none" : names, ")"));
  }

  /// rel[i, j], rel[i][j] or rel(i, j); a parameter of rank 0 needs no brackets.
  FOVEAL_CALLED Expr read(const Param& param, std::size_t position) {
    std::vector<Expr> index;
    if (in_.accept("(")) {
      index = list(")", "to close the index of ", param.name());
    } else {
      while (in_.accept("[")) std::ranges::move(list("]", "to close the index of ", param.name()), std::back_inserter(index));
    }
    return built(position, [&] { return param.read(index); });
  }

  /// The rest of `a, b, ...)`.
  FOVEAL_CALLED std::vector<Expr> list(std::string_view close, const char* what, std::string_view owner) {
    std::vector<Expr> items;
    if (in_.accept(close)) return items;
    do {
      items.push_back(conditional());
    } while (in_.accept(","));
    in_.expect(close, what, owner);
    return items;
  }

  FOVEAL_CALLED [[noreturn]] void fail_in_call(const Token& name, std::size_t found, std::size_t expected) {
    in_.fail(name.position, base::join(name.text, ": ", found, " arguments; expected ", expected));
  }

  FOVEAL_CALLED Expr call(const Token& name, const Function& function) {
    in_.expect("(", "after the function ", name.text);
    const std::vector<Expr> args = list(")", "to close the arguments of ", name.text);
    if (args.size() != function.arity()) fail_in_call(name, args.size(), function.arity());
    return built(name.position, [&] { return function(args); });
  }

  /// A named mask or score: constants first, then parameters by name.
  FOVEAL_CALLED Expr call(const Token& name, const NamedExpr& row) {
    std::vector<double> numbers;
    std::vector<Param> params;
    if (in_.accept("(") && !in_.accept(")")) {
      do {
        if (const Param* param = named_param())
          params.push_back(*param);
        else
          numbers.push_back(constant(name));
      } while (in_.accept(","));
      in_.expect(")", "to close the arguments of ", name.text);
    }
    if (static_cast<int>(numbers.size()) != row.integers || static_cast<int>(params.size()) != row.params)
      fail_in_call(name, numbers.size(), params.size(), row.signature);
    return built(name.position, [&] { return row.build(numbers, params); });
  }

  FOVEAL_CALLED [[noreturn]] void fail_in_call(const Token& name, std::size_t numbers, std::size_t params, const std::string& expected) {
    in_.fail(name.position, base::join(name.text, ": ", numbers, " numbers and ", params, " parameters; expected ", expected));
  }

  /// Takes the name of a parameter, if that comes next.
  const Param* named_param() {
    const auto param = in_.token().kind == Token::name ? params_.find(in_.token().text) : params_.end();
    if (param == params_.end()) return nullptr;
    in_.take();
    return &param->second;
  }

  /// A number, which may be an expression of numbers.
  FOVEAL_CALLED double constant(const Token& function) {
    const std::size_t position = in_.token().position;
    return value_of(conditional(), position, function.text);
  }

  FOVEAL_CALLED double value_of(const Expr& expr, std::size_t position, std::string_view function) {
    std::optional<double> value;
    built(position, [&] {
      scoring::Graph graph;
      value = graph.const_value(graph.lower(expr));
      return expr;
    });
    if (!value) in_.fail(position, base::join(function, ": the argument is not constant; expected a number or the name of a parameter"));
    return *value;
  }

  Lexer in_;
  std::map<std::string, Param, std::less<>> params_;
  std::map<std::string, Expr, std::less<>> shared_;  ///< named values of printed text: _1, _2, ...
  int nesting_ = 0;
};

#undef FOVEAL_CALLED

}  // namespace

Expr scoring::parse(std::string_view text, const std::vector<Param>& params, const char* argument) {
  return Parser(text, params, argument)();
}

Expr parse(std::string_view text, const std::vector<Param>& params) { return scoring::parse(text, params, "expression"); }

Param parse_param(std::string_view text) {
  Lexer in(text, "parameter");
  const Token name = in.take();
  if (name.kind != Token::name) in.fail(name.position, base::join("expected a name, found ", describe(name)));
  in.expect(":", "after the name");
  const Token type_name = in.take();
  std::optional<Type> type;
  for (Type known : {Type::real, Type::integer, Type::boolean})
    if (type_name.text == to_string(known)) type = known;
  if (!type) in.fail(type_name.position, base::join("expected a type (real, integer or boolean), found ", describe(type_name)));
  in.expect("[", "before the sizes");
  std::vector<std::int64_t> shape;
  if (!in.accept("]")) {
    do {
      const Token size = in.take();
      const auto value = size.kind == Token::integer ? number<std::int64_t>(size) : std::nullopt;
      if (value.value_or(0) <= 0) in.fail(size.position, base::join("expected a positive size, found ", describe(size)));
      shape.push_back(*value);
    } while (in.accept(","));
    in.expect("]", "after the sizes");
  }
  if (in.token().kind != Token::end) in.fail(in.token().position, base::join("expected the end, found ", describe(in.token())));
  try {
    return Param(std::string(name.text), std::move(shape), *type);
  } catch (const Error& error) {
    in.fail(name.position, error.what());
  }
}

}  // namespace foveal
