#pragma once
// Tokens of the text form; errors show the line and a caret under the column.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace foveal::scoring {

struct Token {
  enum Kind : std::uint8_t { end, name, integer, real, sign };
  Kind kind = end;
  std::string_view text;
  std::size_t position = 0;
};

/// `"x"`, or `the end of the text`.
std::string describe(const Token& token);

class Lexer {
 public:
  /// `what` begins error messages. Throws invalid_argument if the text is longer than 1 MiB.
  Lexer(std::string_view text, const char* what);

  const Token& token() const { return token_; }
  bool is(std::string_view text) const { return token_.kind != Token::end && token_.text == text; }
  Token take();
  bool accept(std::string_view text);
  /// `where` and `owner` end the message.
  void expect(std::string_view text, std::string_view where, std::string_view owner = {});
  [[noreturn]] void fail(std::size_t position, const std::string& message) const;

 private:
  char peek(std::size_t at) const { return at < text_.size() ? text_[at] : '\0'; }
  void advance();
  void skip_digits();
  Token::Kind number();

  std::string_view text_;
  const char* what_;
  std::size_t next_ = 0;
  Token token_;
};

}  // namespace foveal::scoring
