// The text form of expressions and parameters. Recursive descent; every error shows the line and a caret under the column.
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>

#include "base/check.h"
#include "foveal/masks.h"
#include "foveal/score.h"
#include "score/graph.h"
#include "score/names.h"

namespace foveal {
namespace {

constexpr std::size_t max_length = 1u << 20;  // bytes
constexpr int max_nesting = 200;              // levels; keeps hostile text from overflowing the stack

struct Token {
  enum Kind : std::uint8_t { end, name, integer, real, sign };
  Kind kind = end;
  std::string_view text;
  std::size_t position = 0;
};

class Reader {
 public:
  Reader(std::string_view text, const char* what) : text_(text), what_(what) {
    if (text.size() > max_length) {
      base::fail(ErrorCode::invalid_argument, what, ": text of ", text.size(), " bytes; expected at most ", max_length);
    }
    advance();
  }

  const Token& token() const { return token_; }
  bool is(std::string_view sign) const { return token_.kind != Token::end && token_.text == sign; }
  Token take() {
    const Token taken = token_;
    advance();
    return taken;
  }
  bool accept(std::string_view sign) {
    if (!is(sign)) return false;
    advance();
    return true;
  }
  void expect(std::string_view sign, std::string_view where) {
    if (!accept(sign)) fail(token_.position, base::join("expected \"", sign, "\" ", where, ", found ", describe(token_)));
  }

  static std::string describe(const Token& token) {
    return token.kind == Token::end ? "the end of the text" : base::join('"', printable(token.text), '"');
  }

  [[noreturn]] void fail(std::size_t position, const std::string& message) const {
    constexpr std::size_t room = 60;  // shown on either side of the caret
    std::size_t begin = text_.rfind('\n', position == 0 ? 0 : position - 1);
    begin = begin == std::string_view::npos || begin >= position ? 0 : begin + 1;
    const std::size_t end = std::min(text_.find('\n', position), text_.size());
    const std::size_t line =
        1 + static_cast<std::size_t>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(begin), '\n'));
    const std::size_t column = position - begin;
    const std::size_t from = column > room ? position - room : begin;
    const std::size_t shown = std::min(end - from, 2 * room);
    const std::string indent(2 + position - from, ' ');
    base::fail(ErrorCode::invalid_argument, what_, ": line ", line, ", column ", column + 1, ": ", message, "\n  ",
               printable(text_.substr(from, shown)), "\n", indent, "^");
  }

 private:
  static std::string printable(std::string_view text) {
    std::string result(text);
    for (char& c : result)
      if (std::iscntrl(static_cast<unsigned char>(c))) c = ' ';
    return result;
  }

  void advance() {
    while (next_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[next_]))) ++next_;
    const std::size_t begin = next_;
    token_ = {Token::end, {}, begin};
    if (begin == text_.size()) return;
    const auto peek = [this](std::size_t at) { return at < text_.size() ? static_cast<unsigned char>(text_[at]) : 0; };
    if (std::isalpha(peek(begin)) || peek(begin) == '_') {
      while (std::isalnum(peek(next_)) || peek(next_) == '_') ++next_;
      token_.kind = Token::name;
    } else if (std::isdigit(peek(begin)) || (peek(begin) == '.' && std::isdigit(peek(begin + 1)))) {
      token_.kind = number();
    } else {
      static constexpr std::string_view signs[] = {"**", "//", "<<", ">>", "<=", ">=", "==", "!="};
      next_ += std::find(std::begin(signs), std::end(signs), text_.substr(begin, 2)) != std::end(signs) ? 2 : 1;
      token_.kind = Token::sign;
    }
    token_.text = text_.substr(begin, next_ - begin);
  }

  Token::Kind number() {
    const auto digits = [this] {
      while (next_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[next_]))) ++next_;
    };
    Token::Kind kind = Token::integer;
    digits();
    if (next_ < text_.size() && text_[next_] == '.') {
      kind = Token::real;
      ++next_;
      digits();
    }
    if (next_ < text_.size() && (text_[next_] == 'e' || text_[next_] == 'E')) {
      const std::size_t before = next_++;
      if (next_ < text_.size() && (text_[next_] == '+' || text_[next_] == '-')) ++next_;
      const std::size_t first = next_;
      digits();
      if (next_ == first) {
        next_ = before;  // not an exponent
      } else {
        kind = Token::real;
      }
    }
    return kind;
  }

  std::string_view text_;
  const char* what_;
  std::size_t next_ = 0;
  Token token_;
};

struct Function {
  std::size_t arity;
  Expr (*build)(std::span<const Expr> x);
};

const std::map<std::string_view, Function>& functions() {
#define FOVEAL_1(name)                                      \
  {                                                         \
#name, {                                                \
      1, [](std::span<const Expr> x) { return name(x[0]); } \
    }                                                       \
  }
#define FOVEAL_2(name)                                            \
  {                                                               \
#name, {                                                      \
      2, [](std::span<const Expr> x) { return name(x[0], x[1]); } \
    }                                                             \
  }
#define FOVEAL_3(name)                                                  \
  {                                                                     \
#name, {                                                            \
      3, [](std::span<const Expr> x) { return name(x[0], x[1], x[2]); } \
    }                                                                   \
  }
  static const std::map<std::string_view, Function> table = {
      FOVEAL_2(floor_div), FOVEAL_3(where),      FOVEAL_2(min),        FOVEAL_2(max),           FOVEAL_3(clamp),
      FOVEAL_1(abs),       FOVEAL_1(exp),        FOVEAL_1(exp2),       FOVEAL_1(log),           FOVEAL_1(log2),
      FOVEAL_1(sqrt),      FOVEAL_1(rsqrt),      FOVEAL_1(tanh),       FOVEAL_1(sin),           FOVEAL_1(sigmoid),
      FOVEAL_1(cos),       FOVEAL_1(tan),        FOVEAL_1(erf),        FOVEAL_1(floor),         FOVEAL_2(pow),
      FOVEAL_1(to_real),   FOVEAL_1(to_integer), FOVEAL_1(to_boolean), FOVEAL_1(stop_gradient), FOVEAL_1(to_int32),
  };
#undef FOVEAL_1
#undef FOVEAL_2
#undef FOVEAL_3
  return table;
}

const std::map<std::string_view, Expr>& words() {
  static const std::map<std::string_view, Expr> table = {
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

/// Binary operators from the loosest level to the tightest, as in Python. Comparisons stand above them, unary operators below.
struct Binary {
  std::string_view sign;
  int level;
  Expr (*build)(const Expr& a, const Expr& b);
};
constexpr int tightest = 5;
constexpr Binary binaries[] = {
    {"|", 0, [](const Expr& a, const Expr& b) { return a | b; }},   {"^", 1, [](const Expr& a, const Expr& b) { return a ^ b; }},
    {"&", 2, [](const Expr& a, const Expr& b) { return a & b; }},   {"<<", 3, [](const Expr& a, const Expr& b) { return a << b; }},
    {">>", 3, [](const Expr& a, const Expr& b) { return a >> b; }}, {"+", 4, [](const Expr& a, const Expr& b) { return a + b; }},
    {"-", 4, [](const Expr& a, const Expr& b) { return a - b; }},   {"*", 5, [](const Expr& a, const Expr& b) { return a * b; }},
    {"/", 5, [](const Expr& a, const Expr& b) { return a / b; }},   {"//", 5, [](const Expr& a, const Expr& b) { return floor_div(a, b); }},
    {"%", 5, [](const Expr& a, const Expr& b) { return a % b; }},
};
constexpr Binary comparisons[] = {
    {"==", 0, [](const Expr& a, const Expr& b) { return a == b; }}, {"!=", 0, [](const Expr& a, const Expr& b) { return a != b; }},
    {"<", 0, [](const Expr& a, const Expr& b) { return a < b; }},   {"<=", 0, [](const Expr& a, const Expr& b) { return a <= b; }},
    {">", 0, [](const Expr& a, const Expr& b) { return a > b; }},   {">=", 0, [](const Expr& a, const Expr& b) { return a >= b; }},
};

class Parser {
 public:
  Parser(std::string_view text, const std::vector<Param>& params) : in_(text, "expression") {
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
        in_.fail(in_.token().position, base::join("expected an operator or the end, found ", Reader::describe(in_.token())));
      }
      return present(std::move(value), start.position);
    }
  }

 private:
  class Nesting {
   public:
    Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > max_nesting) {
        parser_.in_.fail(parser_.in_.token().position, base::join("nested deeper than ", max_nesting, " levels"));
      }
    }
    ~Nesting() { --parser_.nesting_; }

   private:
    Parser& parser_;
  };

  /// Builds; what is wrong with the operands is reported at `position`.
  template <class Build>
  Expr built(std::size_t position, Build&& build) {
    try {
      return build();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      in_.fail(position, error.what());
    }
  }

  /// A name that is about to be defined parses to an absent Expr; anywhere else that is an unknown name.
  Expr present(Expr value, std::size_t position) {
    if (!value.present()) in_.fail(position, "a shared value is used before it is defined");
    return value;
  }

  Expr conditional() {
    const Nesting guard(*this);
    Expr value = disjunction();
    if (!in_.is("if")) return value;
    const std::size_t position = in_.take().position;
    const Expr condition = disjunction();
    in_.expect("else", "after `a if condition`");
    const Expr otherwise = conditional();
    return built(position, [&] { return where(condition, value, otherwise); });
  }

  Expr disjunction() {
    Expr value = conjunction();
    while (in_.is("or")) {
      const std::size_t position = in_.take().position;
      const Expr right = conjunction();
      value = built(position, [&] { return value | right; });
    }
    return value;
  }

  Expr conjunction() {
    Expr value = negation();
    while (in_.is("and")) {
      const std::size_t position = in_.take().position;
      const Expr right = negation();
      value = built(position, [&] { return value & right; });
    }
    return value;
  }

  Expr negation() {
    if (!in_.is("not")) return comparison();
    const Nesting guard(*this);
    const std::size_t position = in_.take().position;
    const Expr operand = negation();
    return built(position, [&] { return !operand; });
  }

  const Binary* found(std::span<const Binary> table, int level) const {
    if (in_.token().kind != Token::sign) return nullptr;
    const auto row =
        std::find_if(table.begin(), table.end(), [&](const Binary& b) { return b.level == level && b.sign == in_.token().text; });
    return row == table.end() ? nullptr : &*row;
  }

  /// `a < b <= c` means (a < b) & (b <= c).
  Expr comparison() {
    Expr left = binary(0);
    Expr all;
    while (const Binary* row = found(comparisons, 0)) {
      const std::size_t position = in_.take().position;
      const Expr right = binary(0);
      const Expr one = built(position, [&] { return row->build(left, right); });
      all = all.present() ? all & one : one;
      left = right;
    }
    return all.present() ? all : left;
  }

  Expr binary(int level) {
    if (level > tightest) return unary();
    Expr value = binary(level + 1);
    while (const Binary* row = found(binaries, level)) {
      const std::size_t position = in_.take().position;
      const Expr right = binary(level + 1);
      value = built(position, [&] { return row->build(value, right); });
    }
    return value;
  }

  Expr unary() {
    const Token sign = in_.token();
    if (sign.kind != Token::sign || (sign.text != "-" && sign.text != "+" && sign.text != "~" && sign.text != "!")) return power();
    const Nesting guard(*this);
    in_.take();
    if (sign.text == "-" && in_.token().kind == Token::integer &&
        in_.token().text == "9223372036854775808") {  // without its sign it does not fit
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
    if (!in_.is("**")) return base;
    const Nesting guard(*this);
    const std::size_t position = in_.take().position;
    const Expr exponent = unary();
    return built(position, [&] { return pow(base, exponent); });
  }

  [[noreturn]] void fail_to_fit(const Token& integer) {
    in_.fail(integer.position,
             base::join("the integer ", integer.text.substr(0, 40), " does not fit 64 bits; write it as a real, with a point"));
  }

  Expr atom() {
    const Token token = in_.token();
    switch (token.kind) {
      case Token::integer: {
        std::int64_t value = 0;
        const auto [stop, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
        if (error != std::errc{}) fail_to_fit(token);
        in_.take();
        return Expr(value);
      }
      case Token::real: {
        double value = 0;
        const auto [stop, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
        if (error != std::errc{}) in_.fail(token.position, base::join("the number ", token.text.substr(0, 40), " is out of range"));
        in_.take();
        return Expr(value);
      }
      case Token::name:
        return named();
      case Token::sign:
        if (in_.accept("(")) {
          Expr value = conditional();
          in_.expect(")", "to close the parenthesis");
          return value;
        }
        break;
      case Token::end:
        break;
    }
    in_.fail(token.position, base::join("expected a value, found ", Reader::describe(token)));
  }

  Expr named() {
    const Token name = in_.take();
    if (auto param = params_.find(name.text); param != params_.end()) return read(param->second, name.position);
    if (auto word = words().find(name.text); word != words().end()) return word->second;
    if (auto shared = shared_.find(name.text); shared != shared_.end()) return shared->second;
    if (auto function = functions().find(name.text); function != functions().end()) return call(name, function->second);
    const auto& table = named_exprs();
    const auto known = std::find_if(table.begin(), table.end(), [&](const NamedExpr& row) { return row.name == name.text; });
    if (known != table.end()) return call(name, *known);
    const bool defines = in_.is("=") && nesting_ == 1 && name.text.size() > 1 && scoring::is_reserved(name.text);
    if (defines) return {};
    std::string names;
    for (const auto& [text, param] : params_) names += (names.empty() ? "" : ", ") + text;
    in_.fail(name.position, base::join("unknown name \"", name.text.substr(0, 60),
                                       "\"; expected a symbol, a function, a named mask or one of the parameters (",
                                       names.empty() ? "there are none" : names, ")"));
  }

  /// rel[i, j], rel[i][j] or rel(i, j); a parameter without dimensions also stands alone.
  Expr read(const Param& param, std::size_t position) {
    std::vector<Expr> index;
    const auto list = [&](std::string_view close) {
      if (in_.accept(close)) return;
      do {
        index.push_back(conditional());
      } while (in_.accept(","));
      in_.expect(close, base::join("to close the index of ", param.name()));
    };
    if (in_.accept("(")) {
      list(")");
    } else {
      while (in_.accept("[")) list("]");
    }
    return built(position, [&] { return param.read(index); });
  }

  Expr call(const Token& name, const Function& function) {
    in_.expect("(", base::join("after the function ", name.text));
    std::vector<Expr> args;
    if (!in_.is(")")) {
      do {
        args.push_back(conditional());
      } while (in_.accept(","));
    }
    in_.expect(")", base::join("to close the arguments of ", name.text));
    if (args.size() != function.arity) {
      in_.fail(name.position, base::join(name.text, ": ", args.size(), " arguments; expected ", function.arity));
    }
    return built(name.position, [&] { return function.build(args); });
  }

  /// A named mask or score: constants first, then parameters by name.
  Expr call(const Token& name, const NamedExpr& row) {
    std::vector<double> numbers;
    std::vector<Param> params;
    if (in_.accept("(") && !in_.accept(")")) {
      do {
        const Token start = in_.token();
        if (auto param = params_.find(start.text); start.kind == Token::name && param != params_.end()) {
          in_.take();
          params.push_back(param->second);
        } else {
          numbers.push_back(constant(conditional(), start.position, name.text));
        }
      } while (in_.accept(","));
      in_.expect(")", base::join("to close the arguments of ", name.text));
    }
    if (static_cast<int>(numbers.size()) != row.integers || static_cast<int>(params.size()) != row.params) {
      in_.fail(name.position,
               base::join(name.text, ": ", numbers.size(), " numbers and ", params.size(), " parameters; expected ", row.signature));
    }
    return built(name.position, [&] { return row.build(numbers, params); });
  }

  double constant(const Expr& expr, std::size_t position, std::string_view function) {
    std::optional<double> value;
    built(position, [&] {
      scoring::Graph graph;
      value = graph.const_value(graph.lower(expr));
      return expr;
    });
    if (!value) in_.fail(position, base::join(function, ": the argument is not constant; expected a number or the name of a parameter"));
    return *value;
  }

  Reader in_;
  std::map<std::string, Param, std::less<>> params_;
  std::map<std::string, Expr, std::less<>> shared_;  ///< values that printed text gave a name: _1, _2, ...
  int nesting_ = 0;
};

}  // namespace

Expr parse(std::string_view text, const std::vector<Param>& params) { return Parser(text, params)(); }

Param parse_param(std::string_view text) {
  Reader in(text, "parameter");
  const Token name = in.take();
  if (name.kind != Token::name) in.fail(name.position, base::join("expected a name, found ", Reader::describe(name)));
  in.expect(":", "after the name");
  const Token type_name = in.take();
  std::optional<Type> type;
  for (Type known : {Type::real, Type::integer, Type::boolean})
    if (type_name.text == to_string(known)) type = known;
  if (!type) in.fail(type_name.position, base::join("expected a type (real, integer or boolean), found ", Reader::describe(type_name)));
  in.expect("[", "before the sizes");
  std::vector<std::int64_t> shape;
  if (!in.accept("]")) {
    do {
      const Token size = in.take();
      std::int64_t value = 0;
      const auto [stop, error] = std::from_chars(size.text.data(), size.text.data() + size.text.size(), value);
      if (size.kind != Token::integer || error != std::errc{} || value <= 0) {
        in.fail(size.position, base::join("expected a positive size, found ", Reader::describe(size)));
      }
      shape.push_back(value);
    } while (in.accept(","));
    in.expect("]", "after the sizes");
  }
  if (in.token().kind != Token::end) in.fail(in.token().position, base::join("expected the end, found ", Reader::describe(in.token())));
  try {
    return Param(std::string(name.text), std::move(shape), *type);
  } catch (const Error& error) {
    in.fail(name.position, error.what());
  }
}

}  // namespace foveal
