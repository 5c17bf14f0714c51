#pragma once
// A mask as tiles see it: which are full, partial or empty, as text and as pixels.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "problem/line.h"

namespace foveal::cli {

/// One (batch, head) of a problem line; queries from top to bottom, keys from left to right.
class MaskPicture {
 public:
  /// Classifies tiles of block_q queries and block_kv keys. Parameters that the mask reads are made as the line says.
  MaskPicture(const problem::Line& line, std::int32_t block_q, std::int32_t block_kv, std::int64_t batch, std::int64_t head);

  /// Counts, then a character for each tile ('#' full, '+' partial, '.' empty), or for several of them where there are many.
  std::string text() const;
  /// A PNG file, a square for each tile.
  std::vector<std::byte> png() const;

 private:
  enum class Tile : std::uint8_t { empty, partial, full };
  Tile at(std::int64_t row, std::int64_t column) const { return tiles_[static_cast<std::size_t>(row * columns_ + column)]; }

  std::string title_;
  std::int64_t rows_ = 0, columns_ = 0;
  std::vector<Tile> tiles_;
};

}  // namespace foveal::cli
