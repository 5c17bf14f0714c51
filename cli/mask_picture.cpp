#include "mask_picture.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "files/png.h"
#include "lines.h"
#include "mask/block_mask.h"
#include "problem/case_data.h"
#include "problem/line_problem.h"

namespace foveal::cli {
namespace {

constexpr std::int64_t text_side = 64;                           // characters
constexpr std::int64_t most_pixels = 4096, wanted_pixels = 768;  // of a side
constexpr std::int64_t most_tiles = most_pixels * most_pixels;   // more would not be seen, and a mask may need a look at each

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
  title_ = fmt::format("mask of batch {}, head {}: tiles of {} queries x {} keys, {} full (#), {} partial (+), {} empty (.)", batch, head,
                       block_q, block_kv, found.full, found.partial, found.empty);

  for (const TileSchedule::Row& row : schedule.rows) {
    tasks_ = std::max(tasks_, row.task + 1);
    if (row.batch == batch && row.head <= head && head < row.head + row.heads) taken_.push_back(row);
  }
  if (tasks_ > 0)
    order_ = fmt::format("{} tasks, which own {}; {} {}{} at a time", tasks_, rows_are_keys_ ? "keys" : "queries", schedule.teams,
                         schedule.team, schedule.teams == 1 ? "" : "s");
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
  std::string text = title_ + (group > 1 ? fmt::format("; a character for {0} x {0} of them", group) : "") + "\n";
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

std::vector<std::byte> MaskPicture::png() const {
  static constexpr std::array<Pixel, 3> colours{{{244, 244, 240}, {242, 166, 84}, {46, 92, 138}}};  // empty, partial, full
  const std::int64_t longer = std::max(rows_, columns_);
  const std::int64_t side = std::max<std::int64_t>(1, wanted_pixels / longer);                     // of a tile
  const std::int64_t group = std::max<std::int64_t>(1, (longer + most_pixels - 1) / most_pixels);  // tiles of a pixel
  const std::int64_t gap = side >= 6 ? 1 : 0;                                                      // between tiles
  const std::int64_t strip = taken_.empty() ? 0 : std::clamp<std::int64_t>(side, 8, 24);           // of tasks, and half of it of nothing
  const std::int64_t left = rows_are_keys_ ? 0 : strip * 3 / 2, top = rows_are_keys_ ? strip * 3 / 2 : 0;
  Image image(static_cast<int>(left + columns_ / group * side + gap), static_cast<int>(top + rows_ / group * side + gap), {210, 210, 206});
  for (int y = static_cast<int>(top); y < image.height(); ++y)
    for (int x = static_cast<int>(left); x < image.width(); ++x) {
      const std::int64_t row = y - top, column = x - left;
      if (gap == 1 && (column % side == 0 || row % side == 0)) continue;
      image.at(x, y) = colours[static_cast<std::size_t>(at(row / side * group, column / side * group))];
    }
  const std::int64_t block = rows_are_keys_ ? block_kv_ : block_q_;
  for (const TileSchedule::Row& row : taken_) {
    const auto shade = static_cast<std::uint8_t>(40 + 190 * row.task / tasks_);
    const std::int64_t along = rows_are_keys_ ? image.width() - gap : image.height() - gap;
    for (std::int64_t at = row.begin / block / group * side + gap; at < std::min((row.end - 1) / block / group * side + side, along); ++at)
      for (std::int64_t across = 0; across < strip; ++across)
        image.at(static_cast<int>(rows_are_keys_ ? at : across), static_cast<int>(rows_are_keys_ ? across : at)) = {shade, shade, 90};
  }
  return to_png(image);
}

}  // namespace foveal::cli
