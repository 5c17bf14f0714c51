#include "score/lexer.h"

#include <algorithm>

#include "base/ascii.h"
#include "base/check.h"

namespace foveal::scoring {
namespace {

constexpr std::size_t max_length = 1u << 20;  // bytes

std::string printable(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (base::is_control(c)) c = ' ';
  return result;
}

}  // namespace

std::string describe(const Token& token) {
  return token.kind == Token::end ? "the end of the text" : base::join('"', printable(token.text), '"');
}

Lexer::Lexer(std::string_view text, const char* what) : text_(text), what_(what) {
  FOVEAL_CHECK(text.size() <= max_length, what, ": text of ", text.size(), " bytes; expected at most ", max_length);
  advance();
}

Token Lexer::take() {
  const Token taken = token_;
  advance();
  return taken;
}

bool Lexer::accept(std::string_view text) {
  if (!is(text)) return false;
  advance();
  return true;
}

void Lexer::expect(std::string_view text, std::string_view where, std::string_view owner) {
  if (!accept(text)) fail(token_.position, base::join("expected \"", text, "\" ", where, owner, ", found ", describe(token_)));
}

void Lexer::fail(std::size_t position, const std::string& message) const {
  constexpr std::size_t room = 60;  // shown on either side of the caret
  std::size_t begin = text_.rfind('\n', position == 0 ? 0 : position - 1);
  begin = begin == std::string_view::npos || begin >= position ? 0 : begin + 1;
  const std::size_t end = std::min(text_.find('\n', position), text_.size());
  const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(begin), '\n');
  const std::size_t column = position - begin;
  const std::size_t from = column > room ? position - room : begin;
  const std::string indent(2 + position - from, ' ');
  base::fail(ErrorCode::invalid_argument, what_, ": line ", line, ", column ", column + 1, ": ", message, "\n  ",
             printable(text_.substr(from, std::min(end - from, 2 * room))), "\n", indent, "^");
}

void Lexer::advance() {
  while (base::is_space(peek(next_))) ++next_;
  const std::size_t begin = next_;
  token_ = {Token::end, {}, begin};
  if (begin == text_.size()) return;
  if (base::is_name_part(peek(begin)) && !base::is_digit(peek(begin))) {
    while (base::is_name_part(peek(next_))) ++next_;
    token_.kind = Token::name;
  } else if (base::is_digit(peek(begin)) || (peek(begin) == '.' && base::is_digit(peek(begin + 1)))) {
    token_.kind = number();
  } else {
    static constexpr std::string_view signs[] = {"**", "//", "<<", ">>", "<=", ">=", "==", "!="};
    next_ += std::find(std::begin(signs), std::end(signs), text_.substr(begin, 2)) != std::end(signs) ? 2 : 1;
    while (base::continues_utf8(peek(next_))) ++next_;  // messages show whole characters
    token_.kind = Token::sign;
  }
  token_.text = text_.substr(begin, next_ - begin);
}

void Lexer::skip_digits() {
  while (base::is_digit(peek(next_))) ++next_;
}

Token::Kind Lexer::number() {
  Token::Kind kind = Token::integer;
  skip_digits();
  if (peek(next_) == '.') {
    kind = Token::real;
    ++next_;
    skip_digits();
  }
  if (peek(next_) != 'e' && peek(next_) != 'E') return kind;
  const std::size_t before = next_++;
  if (peek(next_) == '+' || peek(next_) == '-') ++next_;
  if (base::is_digit(peek(next_))) {
    skip_digits();
    return Token::real;
  }
  next_ = before;  // not an exponent
  return kind;
}

}  // namespace foveal::scoring
