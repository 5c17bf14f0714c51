#pragma once
// Names of enumerators that count up from 0.
#include <cstddef>

namespace foveal::base {

/// "?" for values that are not enumerators, which callers can make by a cast.
template <class Enum, std::size_t count>
constexpr const char* enum_name(Enum value, const char* const (&names)[count]) {
  const auto at = static_cast<std::size_t>(value);
  return at < count ? names[at] : "?";
}

}  // namespace foveal::base
