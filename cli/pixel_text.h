#pragma once
// Words in pictures.
#include <cstdint>
#include <string>

#include "files/png.h"

namespace foveal::cli {

constexpr std::int64_t character_width = 12, line_height = 22;  // in pixels

enum class Direction : std::uint8_t { across, upwards };

/// Writes with the upper left corner of the first letter at (x, y), for `upwards` the lower left one. Digits, small letters, C, T, A, and
/// some signs; others are left blank.
void write_text(Image& image, std::int64_t x, std::int64_t y, const std::string& text, Direction direction = Direction::across);

}  // namespace foveal::cli
