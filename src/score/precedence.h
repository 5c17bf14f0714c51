#pragma once
// Precedence of binary operators, as in Python. Comparisons bind less tightly than all of them, unary operators more.
#include <algorithm>
#include <string_view>

#include "foveal/score.h"

namespace foveal::scoring {

struct BinaryOperator {
  std::string_view sign;
  int level;  ///< higher binds more tightly
  Expr (*build)(const Expr& a, const Expr& b);
};
constexpr int tightest_binary = 5;
// clang-format takes an operator's name for an operator.
// clang-format off
constexpr BinaryOperator binary_operators[] = {
    {"|", 0, operator|},
    {"^", 1, operator^},
    {"&", 2, operator&},
    {"<<", 3, operator<<},
    {">>", 3, operator>>},
    {"+", 4, operator+},
    {"-", 4, operator-},
    {"*", 5, operator*},
    {"/", 5, operator/},
    {"//", 5, floor_div},
    {"%", 5, operator%},
};
// clang-format on

/// Null for other texts.
constexpr const BinaryOperator* binary_operator(std::string_view sign) {
  const auto row =
      std::find_if(std::begin(binary_operators), std::end(binary_operators), [&](const auto& row) { return row.sign == sign; });
  return row == std::end(binary_operators) ? nullptr : row;
}

}  // namespace foveal::scoring
