#pragma once
// Classes of characters, the same in every locale: those of <cctype> take more letters in some.

namespace foveal::base {

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
constexpr bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
/// Of ASCII; bytes above are none, where `char` has a sign and where it has none (64-bit Arm).
constexpr bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7F'; }
constexpr char to_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
/// Of names, which do not begin with a digit.
constexpr bool is_name_part(char c) { return is_letter(c) || is_digit(c) || c == '_'; }
/// A byte of a character of UTF-8 that is not its first.
constexpr bool continues_utf8(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace foveal::base
