#include "base/lru_cache.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <vector>

namespace foveal::base {
namespace {

TEST(LruCache, ForgetsTheLeastRecentlyUsed) {
  LruCache<int> cache(2);
  const auto value = std::make_shared<const int>(7);
  cache.insert("a", value);
  cache.insert("b", value);
  EXPECT_NE(cache.find("a"), nullptr);
  cache.insert("c", value);
  EXPECT_EQ(cache.find("b"), nullptr);
  EXPECT_NE(cache.find("a"), nullptr);
  EXPECT_NE(cache.find("c"), nullptr);
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(value.use_count(), 3) << "what is forgotten ends";
}

TEST(LruCache, KeepsWhatWasThereFirst) {
  LruCache<int> cache(2);
  cache.insert("a", std::make_shared<const int>(1));
  cache.insert("a", std::make_shared<const int>(2));
  EXPECT_EQ(*cache.find("a"), 1);
  EXPECT_EQ(cache.size(), 1u);
}

TEST(LruCache, MakesWhatIsNotThere) {
  LruCache<int> cache(2);
  int made = 0;
  const auto one = [&] { return ++made; };
  const auto first = cache.find_or_make("a", one);
  EXPECT_EQ(cache.find_or_make("a", one), first);
  EXPECT_EQ(made, 1);
  EXPECT_THROW(cache.find_or_make("b", []() -> int { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(cache.find("b"), nullptr) << "what failed is made again";
  EXPECT_EQ(*cache.find_or_make("b", one), 2);
}

TEST(LruCache, IsSafeFromManyThreads) {
  LruCache<int> cache(16);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&cache, t] {
      for (int i = 0; i < 2000; ++i) {
        const std::string key = std::to_string((i * 7 + t) % 40);
        if (!cache.find(key)) cache.insert(key, std::make_shared<const int>(i));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.size(), 16u);
}

}  // namespace
}  // namespace foveal::base
