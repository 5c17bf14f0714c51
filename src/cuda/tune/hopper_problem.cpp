#include "cuda/tune/hopper_problem.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace foveal {

const char* device::to_string(TileSource source) {
  static constexpr const char* names[] = {"all", "causal", "band", "list"};
  static_assert(std::size(names) == static_cast<std::size_t>(TileSource::list) + 1);
  return names[static_cast<std::size_t>(source)];
}
std::string device::value_text(TileSource source) { return base::join("foveal::device::TileSource::", to_string(source)); }

namespace cuda {
namespace {

constexpr std::int64_t unlimited = std::int64_t{1} << 30;

}  // namespace

Sm90Mask sm90_mask(const problem::Problem& p) {
  Sm90Mask mask;
  mask.band = {-unlimited, unlimited};
  if (!p.has_mask()) return mask;
  const auto length = [](bool varies, std::int64_t n) { return varies ? std::nullopt : std::optional(n); };
  const auto band = mask::find_band(p.score->mask, length(p.varlen, p.seqlen_q), length(p.ragged_kv() || p.any_length, p.seqlen_kv));
  if (!band) {
    mask.tiles = device::TileSource::list;
    return mask;
  }
  const std::int64_t shift = p.attention.q_offset - p.attention.kv_offset;
  mask.band = {std::clamp(band->low + shift, -unlimited, unlimited), std::clamp(band->high + shift, -unlimited, unlimited)};
  const bool low = mask.band.low > -p.seqlen_q, high = mask.band.high < p.seqlen_kv - 1;
  mask.tiles = low ? device::TileSource::band : high ? device::TileSource::causal : device::TileSource::all;
  return mask;
}

const ScoreForms& HopperProblem::forms() const {
  if (!forms_) forms_.emplace(problem, program_of(problem));
  return *forms_;
}

const LineValues& HopperProblem::lines() const {
  if (!lines_) lines_ = problem.has_score_mod() ? find_line_values(forms()) : LineValues{};
  return *lines_;
}

}  // namespace cuda
}  // namespace foveal
