// Which masks are bands of diagonals, and which bands.
#include "mask/band.h"

#include <gtest/gtest.h>

#include <string>

#include "foveal/score.h"

namespace foveal::mask {
namespace {

std::optional<Band> band_of(const std::string& mask, std::optional<std::int64_t> seqlen_q = {},
                            std::optional<std::int64_t> seqlen_kv = {}) {
  const std::vector<Param> params{Param("flag", {}, Type::boolean)};
  return find_band(scoring::compile({.mask = parse(mask, params), .params = params}).mask, seqlen_q, seqlen_kv);
}

void expect_band(const std::optional<Band>& band, std::int64_t low, std::int64_t high) {
  ASSERT_TRUE(band);
  EXPECT_EQ(band->low, low);
  EXPECT_EQ(band->high, high);
}

constexpr std::int64_t unlimited = Band::unlimited;

TEST(Band, OfConditionsThatHoldTogether) {
  expect_band(band_of("kv_idx <= q_idx"), -unlimited, 0);
  expect_band(band_of("kv_idx <= q_idx and q_idx - kv_idx < 10"), -9, 0);
  expect_band(band_of("abs(q_idx - kv_idx) <= 4"), -4, 4);
  expect_band(band_of("not (kv_idx > q_idx or kv_idx < q_idx - 7)"), -7, 0);
  expect_band(band_of("0 < 1"), -unlimited, unlimited);
}

TEST(Band, OfLengthsWhereTheyAreKnown) {
  expect_band(band_of("kv_idx - seqlen_kv <= q_idx - seqlen_q", 10, 16), -unlimited, 6);
  expect_band(band_of("abs(kv_idx - q_idx) <= seqlen_kv - 5", 10, 16), -11, 11);
  EXPECT_FALSE(band_of("kv_idx - seqlen_kv <= q_idx - seqlen_q", 10));
}

TEST(Band, IsNoOtherMask) {
  for (const char* mask : {"kv_idx <= q_idx or kv_idx < 4", "kv_idx < 4", "kv_idx <= 2 * q_idx", "kv_idx <= q_idx and flag[]",
                           "kv_idx <= q_idx + head", "kv_idx == q_idx", "1 < 0", "not (kv_idx <= q_idx and kv_idx > q_idx - 7)"})
    EXPECT_FALSE(band_of(mask)) << mask;
}

}  // namespace
}  // namespace foveal::mask
