#include "score/names.h"

#include <algorithm>

#include "base/ascii.h"
#include "score/op_table.h"

namespace foveal::scoring {

bool is_identifier(std::string_view name) {
  return !name.empty() && !base::is_digit(name.front()) && std::all_of(name.begin(), name.end(), base::is_name_part);
}

bool is_reserved(std::string_view name) {
  // In addition to the operations of the table.
  static constexpr std::string_view words[] = {"and", "or", "not", "if", "else", "True", "False", "inf", "clamp", "floor_div"};
  if (std::find(std::begin(words), std::end(words), name) != std::end(words)) return true;
  if (name.size() > 1 && name[0] == '_' && std::all_of(name.begin() + 1, name.end(), base::is_digit))
    return true;  // names of shared values in printed text
  const auto rows = op_rows();
  return std::any_of(rows.begin(), rows.end(), [name](const OpRow& row) { return row.text == name; });
}

}  // namespace foveal::scoring
