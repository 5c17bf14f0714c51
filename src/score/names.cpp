#include "score/names.h"

#include <algorithm>
#include <cctype>

#include "score/op_table.h"

namespace foveal::scoring {

bool is_identifier(std::string_view name) {
  const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; };
  const auto is_part = [&](char c) { return is_letter(c) || std::isdigit(static_cast<unsigned char>(c)); };
  return !name.empty() && is_letter(name.front()) && std::all_of(name.begin(), name.end(), is_part);
}

bool is_reserved(std::string_view name) {
  // In addition to the operations of the table.
  static constexpr std::string_view words[] = {"and", "or", "not", "if", "else", "True", "False", "inf", "clamp", "floor_div"};
  if (std::find(std::begin(words), std::end(words), name) != std::end(words)) return true;
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  if (name.size() > 1 && name[0] == '_' && std::all_of(name.begin() + 1, name.end(), is_digit))
    return true;  // names of shared values in printed text
  const auto rows = op_rows();
  return std::any_of(rows.begin(), rows.end(), [name](const OpRow& row) { return row.text == name; });
}

}  // namespace foveal::scoring
