#include "mask_picture.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "files/png.h"
#include "lines.h"
#include "mask/block_mask.h"
#include "pixel_text.h"
#include "problem/case_data.h"
#include "problem/line_problem.h"

namespace foveal::cli {
namespace {

constexpr std::int64_t text_side = 64;                           // characters
constexpr std::int64_t most_pixels = 4096, wanted_pixels = 768;  // of a side
constexpr std::int64_t most_tiles = most_pixels * most_pixels;   // more would not be seen, and a mask may need a look at each

constexpr Pixel paper{255, 255, 255}, between_tiles{210, 210, 206};
constexpr std::array<Pixel, 3> tile_colours{{{244, 244, 240}, {242, 166, 84}, {46, 92, 138}}};  // empty, partial, full
constexpr std::array<const char*, 3> tile_names{"empty", "partial", "full"};

/// From dark to light, in hues that neighbours are told apart by.
Pixel task_colour(std::int64_t task, std::int64_t tasks) {
  static constexpr std::array<std::array<int, 3>, 5> stops{{{68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}}};
  const std::int64_t last = std::max<std::int64_t>(tasks - 1, 1), place = task * 4;
  const auto stop = static_cast<std::size_t>(std::min<std::int64_t>(place / last, 3));
  const auto mixed = [&](std::size_t colour) {
    const std::int64_t from = stops[stop][colour], to = stops[stop + 1][colour];
    return static_cast<std::uint8_t>(from + (to - from) * (place - static_cast<std::int64_t>(stop) * last) / last);
  };
  return {mixed(0), mixed(1), mixed(2)};
}

std::int64_t width_of(const std::string& text) { return static_cast<std::int64_t>(text.size()) * character_width; }

void fill(Image& image, std::int64_t left, std::int64_t top, std::int64_t width, std::int64_t height, Pixel colour) {
  for (std::int64_t y = top; y < top + height; ++y)
    for (std::int64_t x = left; x < left + width; ++x) image.at(static_cast<int>(x), static_cast<int>(y)) = colour;
}

std::pair<std::int64_t, std::int64_t> lengths_of(const problem::Line& line, const problem::Problem& p, std::int64_t batch) {
  return line.ragged() ? line.lengths[static_cast<std::size_t>(batch)] : std::pair(p.seqlen_q, p.seqlen_kv);
}

}  // namespace

MaskPicture::MaskPicture(const problem::Line& line, const TileSchedule& schedule, std::int64_t batch, std::int64_t head)
    : block_q_(schedule.block_q), block_kv_(schedule.block_kv), rows_are_keys_(schedule.rows_are_keys) {
  const auto block_q = static_cast<std::int32_t>(block_q_), block_kv = static_cast<std::int32_t>(block_kv_);
  FOVEAL_CHECK(block_q >= 1 && block_kv >= 1, "explain: --tile ", block_q, "x", block_kv, "; expected sizes of at least 1");
  const problem::Problem p = problem::problem_of(line, Device{});
  FOVEAL_CHECK(batch >= 0 && batch < p.batch, "explain: --batch ", batch, "; expected 0 to ", p.batch - 1);
  FOVEAL_CHECK(head >= 0 && head < p.heads_q, "explain: --head ", head, "; expected 0 to ", p.heads_q - 1);
  const auto [seqlen_q, seqlen_kv] = lengths_of(line, p, batch);
  seqlen_q_ = seqlen_q, seqlen_kv_ = seqlen_kv;
  rows_ = (seqlen_q + block_q - 1) / block_q, columns_ = (seqlen_kv + block_kv - 1) / block_kv;
  FOVEAL_CHECK(rows_ * columns_ <= most_tiles, "explain: ", rows_, " x ", columns_, " tiles; expected at most ", most_tiles,
               ": try a larger --tile");

  const ParamData params(line);
  const mask::Tiling tiling{.seqlen_q = seqlen_q,
                            .seqlen_kv = seqlen_kv,
                            .block_q = block_q,
                            .block_kv = block_kv,
                            .q_offset = line.attention.q_offset,
                            .kv_offset = line.attention.kv_offset};
  const mask::BlockMask found =
      mask::classify(p.score->mask, tiling, batch, head, scoring::DataReadRanges(p.score->params, params.views()));
  tiles_.assign(static_cast<std::size_t>(rows_ * columns_), Tile::empty);
  for (std::int64_t row = 0; row < rows_; ++row)
    for (auto i = found.row_begin[static_cast<std::size_t>(row)]; i < found.row_begin[static_cast<std::size_t>(row) + 1]; ++i) {
      const mask::Run& run = found.runs[static_cast<std::size_t>(i)];
      std::fill(tiles_.begin() + row * columns_ + run.begin, tiles_.begin() + row * columns_ + run.end,
                run.full ? Tile::full : Tile::partial);
    }
  place_ = fmt::format("mask of batch {}, head {}: tiles of {} queries x {} keys", batch, head, block_q, block_kv);
  counts_ = fmt::format("{} full (#), {} partial (+), {} empty (.)", found.full, found.partial, found.empty);
  tiles_of_each_ = {found.empty, found.partial, found.full};

  for (const TileSchedule::Row& row : schedule.rows) {
    tasks_ = std::max(tasks_, row.task + 1);
    if (row.batch == batch && row.head <= head && head < row.head + row.heads) taken_.push_back(row);
  }
  if (tasks_ > 0)
    order_ = fmt::format("{} {}; {} {}{} at a time", tasks_ == 1 ? "1 task, which owns" : fmt::format("{} tasks, which own", tasks_),
                         rows_are_keys_ ? "keys" : "queries", schedule.teams, schedule.team, schedule.teams == 1 ? "" : "s");
}

std::string MaskPicture::tasks_of(std::int64_t begin, std::int64_t end) const {
  constexpr std::size_t most = 4;
  std::vector<const TileSchedule::Row*> found;
  for (const TileSchedule::Row& row : taken_)
    if (row.begin < end && begin < row.end) found.push_back(&row);
  if (found.empty()) return "";
  std::string text = found.size() == 1 ? "task " : "tasks ";
  for (std::size_t i = 0; i < std::min(found.size(), most); ++i) {
    text += fmt::format("{}{}", i > 0 ? ", " : "", found[i]->task);
    if (found[i]->team >= 0) text += fmt::format(" by {}", found[i]->team);
  }
  return text + (found.size() > most ? fmt::format(" and {} more", found.size() - most) : "");
}

std::string MaskPicture::text() const {
  const std::int64_t group = std::max<std::int64_t>(1, (std::max(rows_, columns_) + text_side - 1) / text_side);
  std::string text = place_ + ", " + counts_ + (group > 1 ? fmt::format("; a character for {0} x {0} of them", group) : "") + "\n";
  if (!order_.empty()) text += order_ + "\n";
  for (std::int64_t row = 0; row < rows_; row += group) {
    text += "  ";
    for (std::int64_t column = 0; column < columns_; column += group) {
      std::array<bool, 3> there{};
      for (std::int64_t r = row; r < std::min(row + group, rows_); ++r)
        for (std::int64_t c = column; c < std::min(column + group, columns_); ++c) there[static_cast<std::size_t>(at(r, c))] = true;
      const bool same = there[0] + there[1] + there[2] == 1;
      text += !same || there[1] ? '+' : there[2] ? '#' : '.';
    }
    const std::string tasks = rows_are_keys_ ? "" : tasks_of(row * block_q_, (row + group) * block_q_);
    text += (tasks.empty() ? "" : "  " + tasks) + "\n";
  }
  if (rows_are_keys_ && tasks_ > 0)
    for (std::int64_t column = 0; column < columns_; column += group)
      text += fmt::format("  keys from {}: {}\n", column * block_kv_, tasks_of(column * block_kv_, (column + group) * block_kv_));
  return text;
}

/// In pixels. From the left: the name of the queries, their first and last number, the strip of tasks, the tiles; from the top: the title,
/// the name and the numbers of the keys, the strip, the tiles, and what the colours mean.
struct MaskPicture::Layout {
  std::int64_t side, group, gap;          ///< of a tile; tiles of one pixel; between tiles
  std::int64_t strip;                     ///< of tasks, and half of it of nothing
  std::int64_t left, top, width, height;  ///< of the tiles
  std::int64_t numbers;                   ///< where those of the keys are
  std::int64_t legend;                    ///< its top
};

namespace {
constexpr std::int64_t margin = 10, swatch = 14;
}  // namespace

MaskPicture::Layout MaskPicture::layout() const {
  Layout where{};
  const std::int64_t longer = std::max(rows_, columns_);
  where.side = std::max<std::int64_t>(1, wanted_pixels / longer);
  where.group = std::max<std::int64_t>(1, (longer + most_pixels - 1) / most_pixels);
  where.gap = where.side >= 6 ? 1 : 0;
  where.strip = taken_.empty() ? 0 : std::clamp<std::int64_t>(where.side, 8, 24);
  where.width = columns_ / where.group * where.side + where.gap, where.height = rows_ / where.group * where.side + where.gap;
  where.numbers = margin + (order_.empty() ? 1 : 2) * line_height + line_height / 2;
  where.left = margin + line_height + width_of(std::to_string(std::max<std::int64_t>(seqlen_q_ - 1, 0))) + margin;
  where.top = where.numbers + line_height;
  (rows_are_keys_ ? where.top : where.left) += where.strip * 3 / 2;
  where.legend = where.top + std::max(where.height, width_of("queries")) + margin;
  return where;
}

std::vector<std::byte> MaskPicture::png() const {
  const Layout where = layout();
  const std::string widest_legend = fmt::format("task {}, the last to start", tasks_);
  const std::int64_t words = std::max({width_of(place_), width_of(order_), where.left + width_of("0 keys " + std::to_string(seqlen_kv_)),
                                       2 * swatch + width_of(widest_legend)});
  const std::int64_t legend_lines = static_cast<std::int64_t>(tile_names.size()) + (taken_.empty() ? 0 : std::min<std::int64_t>(tasks_, 2));
  Image image(static_cast<int>(std::max(where.left + where.width, margin + words) + margin),
              static_cast<int>(where.legend + legend_lines * line_height + margin), paper);
  draw_tiles(image, where);
  draw_tasks(image, where);
  write_words(image, where);
  return to_png(image);
}

void MaskPicture::draw_tiles(Image& image, const Layout& where) const {
  fill(image, where.left, where.top, where.width, where.height, between_tiles);
  for (std::int64_t y = 0; y < where.height; ++y)
    for (std::int64_t x = 0; x < where.width; ++x) {
      if (where.gap == 1 && (x % where.side == 0 || y % where.side == 0)) continue;
      const Tile tile = at(y / where.side * where.group, x / where.side * where.group);
      image.at(static_cast<int>(where.left + x), static_cast<int>(where.top + y)) = tile_colours[static_cast<std::size_t>(tile)];
    }
}

void MaskPicture::draw_tasks(Image& image, const Layout& where) const {
  const std::int64_t block = rows_are_keys_ ? block_kv_ : block_q_, end = rows_are_keys_ ? where.width : where.height;
  for (const TileSchedule::Row& row : taken_) {
    const std::int64_t from = row.begin / block / where.group * where.side + where.gap;
    const std::int64_t to = std::min((row.end - 1) / block / where.group * where.side + where.side, end - where.gap);
    if (to <= from) continue;
    const Pixel colour = task_colour(row.task, tasks_);
    if (rows_are_keys_)
      fill(image, where.left + from, where.top - where.strip * 3 / 2, to - from, where.strip, colour);
    else
      fill(image, where.left - where.strip * 3 / 2, where.top + from, where.strip, to - from, colour);
  }
}

void MaskPicture::write_words(Image& image, const Layout& where) const {
  write_text(image, margin, margin, place_);
  write_text(image, margin, margin + line_height, order_);
  const std::string last_key = std::to_string(seqlen_kv_ - 1), last_query = std::to_string(seqlen_q_ - 1);
  const std::int64_t keys = std::max(where.width, width_of("0 keys " + last_key));
  write_text(image, where.left, where.numbers, "0");
  write_text(image, where.left + (keys - width_of("keys")) / 2, where.numbers, "keys");
  write_text(image, where.left + keys - width_of(last_key), where.numbers, last_key);
  const std::int64_t beside = where.left - (rows_are_keys_ ? 0 : where.strip * 3 / 2) - margin / 2;
  write_text(image, margin, where.top + (std::max(where.height, width_of("queries")) + width_of("queries")) / 2, "queries",
             Direction::upwards);
  write_text(image, beside - width_of("0"), where.top, "0");
  if (where.height >= 2 * line_height) write_text(image, beside - width_of(last_query), where.top + where.height - line_height, last_query);

  std::int64_t y = where.legend;
  const auto legend = [&](Pixel colour, const std::string& text) {
    fill(image, margin, y, swatch, swatch, between_tiles);
    fill(image, margin + 1, y + 1, swatch - 2, swatch - 2, colour);
    write_text(image, margin + 2 * swatch, y, text);
    y += line_height;
  };
  for (std::size_t tile = tile_names.size(); tile-- > 0;)
    legend(tile_colours[tile], fmt::format("{}: {} tile{}", tile_names[tile], tiles_of_each_[tile], tiles_of_each_[tile] == 1 ? "" : "s"));
  if (taken_.empty()) return;
  legend(task_colour(0, tasks_), tasks_ == 1 ? "task 0" : "task 0, the first to start");
  if (tasks_ == 1) return;
  legend(task_colour(tasks_ - 1, tasks_), fmt::format("task {}, the last to start", tasks_ - 1));
}

}  // namespace foveal::cli
