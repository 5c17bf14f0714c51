#pragma once
// Identifiers, and the reserved words of the score language.
#include <string_view>

namespace foveal::scoring {

/// [A-Za-z_][A-Za-z0-9_]*
bool is_identifier(std::string_view name);
/// Symbols, functions and keywords. Named masks are not reserved: a parameter of that name hides the mask.
bool is_reserved(std::string_view name);

}  // namespace foveal::scoring
