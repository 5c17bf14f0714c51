#pragma once
// Names of enumerators that count up from 0, and values that are none of them.
#include <cstddef>
#include <string>

#include "base/check.h"
#include "base/named.h"

namespace foveal::base {

/// "?" for values that are not enumerators, which callers can make by a cast.
template <class Enum, std::size_t count>
constexpr const char* enum_name(Enum value, const char* const (&names)[count]) {
  const auto at = static_cast<std::size_t>(value);
  return at < count ? names[at] : "?";
}

/// Refuses such a value. Enumerators count up to `last`, and to_string() names them.
template <class Enum>
void check_enumerator(Named at, Enum value, Enum last) {
  if (value <= last) return;
  std::string expected;
  for (int i = 0; i <= static_cast<int>(last); ++i)
    expected += (i == 0 ? "" : i < static_cast<int>(last) ? ", " : " or ") + std::string(to_string(static_cast<Enum>(i)));
  fail(ErrorCode::invalid_argument, at.what, at.name, ": enumerator ", static_cast<int>(value), "; expected ", expected);
}

}  // namespace foveal::base
