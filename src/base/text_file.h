#pragma once
// The lines of a text file that people write: a list of problem lines, or of tuned configurations.
#include <string>
#include <vector>

namespace foveal::base {

/// Far above what anybody writes; what has no end (/dev/zero) passes it at once.
inline constexpr std::size_t most_text_bytes = std::size_t{64} << 20;

/// Throws invalid_argument where it cannot be read or holds more than most_text_bytes: `name` names it, `expected` says what it should be.
std::vector<std::string> read_text_lines(const std::string& path, const std::string& name, const std::string& expected);

}  // namespace foveal::base
