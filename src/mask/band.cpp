#include "mask/band.h"

#include <algorithm>

#include "score/conditions.h"

namespace foveal::mask {
namespace {

using scoring::Op;

/// Narrows the band to sum <= 0. False: the sum is not that of a diagonal.
bool narrow(Band& band, const scoring::Linear& sum, std::optional<std::int64_t> seqlen_q, std::optional<std::int64_t> seqlen_kv) {
  std::int64_t constant = sum.constant, of_q = 0, of_kv = 0;
  for (const auto& [symbol, factor] : sum.terms) {
    const auto op = static_cast<Op>(symbol);
    if (op == Op::q_idx)
      of_q = factor;
    else if (op == Op::kv_idx)
      of_kv = factor;
    else if (const auto length = op == Op::seqlen_q ? seqlen_q : op == Op::seqlen_kv ? seqlen_kv : std::nullopt)
      constant += factor * *length;
    else
      return false;
  }
  if (of_kv == 1 && of_q == -1)
    band.high = std::min(band.high, -constant);
  else if (of_kv == -1 && of_q == 1)
    band.low = std::max(band.low, constant);
  else
    return false;
  return true;
}

}  // namespace

std::optional<Band> find_band(const scoring::Program& mask, std::optional<std::int64_t> seqlen_q, std::optional<std::int64_t> seqlen_kv) {
  const scoring::Conditions conditions = scoring::conditions_of(mask);
  Band band;
  const auto narrows = [&](const scoring::Linear& sum) { return narrow(band, sum, seqlen_q, seqlen_kv); };
  if (!conditions.are_all || !std::ranges::all_of(conditions.sums, narrows)) return std::nullopt;
  return band;
}

}  // namespace foveal::mask
