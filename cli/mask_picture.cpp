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

constexpr std::int64_t most_tiles = std::int64_t{1} << 26;
constexpr std::int64_t text_side = 64;                           // characters
constexpr std::int64_t most_pixels = 4096, wanted_pixels = 768;  // of a side

std::pair<std::int64_t, std::int64_t> lengths_of(const problem::Line& line, const problem::Problem& p, std::int64_t batch) {
  return line.ragged() ? line.lengths[static_cast<std::size_t>(batch)] : std::pair(p.seqlen_q, p.seqlen_kv);
}

}  // namespace

MaskPicture::MaskPicture(const problem::Line& line, std::int32_t block_q, std::int32_t block_kv, std::int64_t batch, std::int64_t head) {
  FOVEAL_CHECK(block_q >= 1 && block_kv >= 1, "explain: --tile ", block_q, "x", block_kv, "; expected sizes of at least 1");
  const problem::Problem p = problem::problem_of(line, Device{});
  FOVEAL_CHECK(batch >= 0 && batch < p.batch, "explain: --batch ", batch, "; expected 0 to ", p.batch - 1);
  FOVEAL_CHECK(head >= 0 && head < p.heads_q, "explain: --head ", head, "; expected 0 to ", p.heads_q - 1);
  const auto [seqlen_q, seqlen_kv] = lengths_of(line, p, batch);
  rows_ = (seqlen_q + block_q - 1) / block_q, columns_ = (seqlen_kv + block_kv - 1) / block_kv;
  FOVEAL_CHECK(rows_ * columns_ <= most_tiles, "explain: ", rows_, " x ", columns_, " tiles; expected at most ", most_tiles,
               ": try a larger --tile");

  const problem::CaseData data(parameters_alone(line));
  std::vector<TensorView> params;
  for (std::size_t i = 0; i < line.params.size(); ++i) params.push_back(data.param(i));
  params.resize(p.params.size());
  const mask::Tiling tiling{.seqlen_q = seqlen_q,
                            .seqlen_kv = seqlen_kv,
                            .block_q = block_q,
                            .block_kv = block_kv,
                            .q_offset = line.attention.q_offset,
                            .kv_offset = line.attention.kv_offset};
  const mask::BlockMask found = mask::classify(p.score->mask, tiling, batch, head, scoring::DataReadRanges(p.score->params, params));
  tiles_.assign(static_cast<std::size_t>(rows_ * columns_), Tile::empty);
  for (std::int64_t row = 0; row < rows_; ++row)
    for (auto i = found.row_begin[static_cast<std::size_t>(row)]; i < found.row_begin[static_cast<std::size_t>(row) + 1]; ++i) {
      const mask::Run& run = found.runs[static_cast<std::size_t>(i)];
      std::fill(tiles_.begin() + row * columns_ + run.begin, tiles_.begin() + row * columns_ + run.end,
                run.full ? Tile::full : Tile::partial);
    }
  title_ = fmt::format("mask of batch {}, head {}: tiles of {} queries x {} keys, {} full (#), {} partial (+), {} empty (.)", batch, head,
                       block_q, block_kv, found.full, found.partial, found.empty);
}

std::string MaskPicture::text() const {
  const std::int64_t group = std::max<std::int64_t>(1, (std::max(rows_, columns_) + text_side - 1) / text_side);
  std::string text = title_ + (group > 1 ? fmt::format("; a character for {0} x {0} of them", group) : "") + "\n";
  for (std::int64_t row = 0; row < rows_; row += group) {
    text += "  ";
    for (std::int64_t column = 0; column < columns_; column += group) {
      std::array<bool, 3> there{};
      for (std::int64_t r = row; r < std::min(row + group, rows_); ++r)
        for (std::int64_t c = column; c < std::min(column + group, columns_); ++c) there[static_cast<std::size_t>(at(r, c))] = true;
      const bool same = there[0] + there[1] + there[2] == 1;
      text += !same || there[1] ? '+' : there[2] ? '#' : '.';
    }
    text += "\n";
  }
  return text;
}

std::vector<std::byte> MaskPicture::png() const {
  static constexpr std::array<Pixel, 3> colours{{{244, 244, 240}, {242, 166, 84}, {46, 92, 138}}};  // empty, partial, full
  const std::int64_t longer = std::max(rows_, columns_);
  const std::int64_t side = std::max<std::int64_t>(1, wanted_pixels / longer);                     // of a tile
  const std::int64_t group = std::max<std::int64_t>(1, (longer + most_pixels - 1) / most_pixels);  // tiles of a pixel
  const std::int64_t gap = side >= 6 ? 1 : 0;                                                      // between tiles
  Image image(static_cast<int>(columns_ / group * side + gap), static_cast<int>(rows_ / group * side + gap), {210, 210, 206});
  for (int y = 0; y < image.height(); ++y)
    for (int x = 0; x < image.width(); ++x) {
      if (gap == 1 && (x % side == 0 || y % side == 0)) continue;
      image.at(x, y) = colours[static_cast<std::size_t>(at(y / side * group, x / side * group))];
    }
  return to_png(image);
}

}  // namespace foveal::cli
