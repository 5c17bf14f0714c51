#include "base/check.h"

#include <charconv>

namespace foveal::base {
namespace {

std::string_view written(const char* text, std::to_chars_result end) { return {text, static_cast<std::size_t>(end.ptr - text)}; }

}  // namespace

Piece::Piece(char character) : text_(number_, 1) { number_[0] = character; }
Piece::Piece(std::int64_t number) { text_ = written(number_, std::to_chars(number_, number_ + sizeof number_, number)); }
Piece::Piece(std::uint64_t number) { text_ = written(number_, std::to_chars(number_, number_ + sizeof number_, number)); }
Piece::Piece(double number) {
  text_ = written(number_, std::to_chars(number_, number_ + sizeof number_, number, std::chars_format::general, 6));
}
Piece::Piece(const void* address) {
  number_[0] = '0', number_[1] = 'x';
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  text_ = written(number_, std::to_chars(number_ + 2, number_ + sizeof number_, value, 16));
}

std::string joined(std::initializer_list<Piece> pieces) {
  std::string out;
  for (const Piece& piece : pieces) out += piece.text();
  return out;
}

void fail_joined(ErrorCode code, std::initializer_list<Piece> pieces) { throw Error(code, joined(pieces)); }

std::string shape_text(const std::int64_t* sizes, int rank) {
  std::string out = "[";
  for (int d = 0; d < rank; ++d) out += (d > 0 ? ", " : "") + std::to_string(sizes[d]);
  return out + "]";
}
std::string shape_text(const std::vector<std::int64_t>& sizes) { return shape_text(sizes.data(), static_cast<int>(sizes.size())); }

}  // namespace foveal::base
