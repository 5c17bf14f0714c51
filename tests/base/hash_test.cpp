#include "base/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace foveal::base {
namespace {

TEST(Hash, IsTheSameOnEveryMachine) {
  EXPECT_EQ(to_hex(hash128("")), to_hex(hash128(std::string())));
  EXPECT_EQ(to_hex(hash128("foveal")).size(), 32u);
  EXPECT_EQ(to_hex(hash128("foveal")), "50437526e45287ec6d7cd8d174de423c");
}

TEST(Hash, NearTextsDiffer) {
  std::set<std::string> seen;
  std::string text(40, 'a');
  for (std::size_t i = 0; i < text.size(); ++i)
    for (char c = 'b'; c <= 'z'; ++c) {
      text[i] = c;
      seen.insert(to_hex(hash128(text)));
      text[i] = 'a';
    }
  for (std::size_t length = 0; length < 100; ++length) seen.insert(to_hex(hash128(std::string(length, '\0'))));
  EXPECT_EQ(seen.size(), 40u * 25 + 100);
}

TEST(Hash, EveryBitDependsOnEveryByte) {
  const Hash128 plain = hash128("0123456789abcdef");
  int changed = 0;
  for (int i = 0; i < 16; ++i) {
    std::string text = "0123456789abcdef";
    text[static_cast<std::size_t>(i)] ^= 1;
    const Hash128 other = hash128(text);
    changed += __builtin_popcountll(plain.low ^ other.low) + __builtin_popcountll(plain.high ^ other.high);
  }
  EXPECT_NEAR(changed / 16.0, 64, 8);
}

}  // namespace
}  // namespace foveal::base
