#pragma once
// A mask as a plan's tiles see it: which are full, partial or empty, and who takes which row of them when; as text and as pixels.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "files/png.h"
#include "foveal/attention.h"
#include "problem/line.h"

namespace foveal::cli {

/// One (batch, head) of a problem line; queries from top to bottom, keys from left to right.
class MaskPicture {
 public:
  /// Classifies the schedule's tiles. Parameters that the mask reads are made as the line says.
  MaskPicture(const problem::Line& line, const TileSchedule& schedule, std::int64_t batch, std::int64_t head);

  /// Counts, then a character for each tile ('#' full, '+' partial, '.' empty), or for several of them where there are many, with the tasks
  /// that take them: behind each row of queries, or below where tasks own keys.
  std::string text() const;
  /// A PNG file, a square for each tile; beside each row of queries, or above the columns of keys, the place of its task in the order of
  /// all, from dark (first) to light. With a title, the names of the axes and what the colours mean.
  std::vector<std::byte> png() const;

 private:
  enum class Tile : std::uint8_t { empty, partial, full };
  Tile at(std::int64_t row, std::int64_t column) const { return tiles_[static_cast<std::size_t>(row * columns_ + column)]; }

  struct Layout;
  Layout layout() const;
  void draw_tiles(Image& image, const Layout& where) const;
  void draw_tasks(Image& image, const Layout& where) const;
  void write_words(Image& image, const Layout& where) const;

  /// Tasks of the tokens [begin, end), in order; "" when a run deals them.
  std::string tasks_of(std::int64_t begin, std::int64_t end) const;

  std::string place_, counts_, order_;
  std::array<std::int64_t, 3> tiles_of_each_{};
  std::int64_t seqlen_q_ = 0, seqlen_kv_ = 0, rows_ = 0, columns_ = 0;
  std::int64_t block_q_, block_kv_, tasks_ = 0;
  bool rows_are_keys_;
  std::vector<Tile> tiles_;
  std::vector<TileSchedule::Row> taken_;  ///< of this batch and head
};

}  // namespace foveal::cli
