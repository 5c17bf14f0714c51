#include "base/philox.h"

#include <gtest/gtest.h>

namespace foveal::base {
namespace {

TEST(Philox, GivesThePublishedBits) {
  // Known answers published with the generator (Random123, kat_vectors, philox4x32 with 10 rounds).
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0), (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, DropsTheShareAskedFor) {
  for (const double p : {0.1, 0.5, 0.9}) {
    int dropped = 0;
    for (std::uint32_t i = 0; i < 100000; ++i) dropped += dropout_bits(1, 2, 3, i / 300, i % 300) < dropout_threshold(p);
    EXPECT_NEAR(dropped / 100000.0, p, 0.005);
  }
  EXPECT_EQ(dropout_threshold(0), 0u);
}

TEST(Philox, SeedAndOffsetCountInFull) {
  const std::uint32_t plain = dropout_bits(5, 6, 7, 8, 9);
  EXPECT_NE(plain, dropout_bits(5 + (std::uint64_t{1} << 40), 6, 7, 8, 9));
  EXPECT_NE(plain, dropout_bits(5, 6 + (std::uint64_t{1} << 40), 7, 8, 9));
  EXPECT_NE(plain, dropout_bits(5, 6, 7, 9, 8));
}

}  // namespace
}  // namespace foveal::base
