#pragma once
// The words of the score language that no parameter may be called.
#include <string_view>

namespace foveal::scoring {

/// A letter or _, then letters, digits or _.
bool is_identifier(std::string_view name);
/// A symbol, a function or a keyword. (Named masks are not: a parameter of such a name hides the mask.)
bool is_reserved(std::string_view name);

}  // namespace foveal::scoring
