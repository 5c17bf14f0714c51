#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "base/check.h"

namespace foveal::base {
namespace {

TEST(Parallel, EveryTaskRunsOnce) {
  for (const int threads : {1, 2, 7}) {
    std::vector<std::atomic<int>> runs(1000);
    std::vector<std::atomic<int>> busy(static_cast<std::size_t>(threads));
    parallel_for(default_executor(threads), 1000, [&](std::int64_t task, int slot) {
      ASSERT_LT(slot, threads);
      EXPECT_EQ(busy[static_cast<std::size_t>(slot)]++, 0) << "two tasks at once in one slot";
      ++runs[static_cast<std::size_t>(task)];
      --busy[static_cast<std::size_t>(slot)];
    });
    for (const auto& count : runs) EXPECT_EQ(count, 1);
  }
}

TEST(Parallel, NoTasksIsNothing) {
  parallel_for(default_executor(2), 0, [](std::int64_t, int) { FAIL(); });
}

TEST(Parallel, TheLowestFailingTaskIsRethrownAfterAllHaveEnded) {
  for (const int threads : {1, 3}) {
    std::atomic<int> ended{0};
    try {
      parallel_for(default_executor(threads), 50, [&](std::int64_t task, int) {
        ++ended;
        if (task == 20 || task == 33) fail(ErrorCode::device, "task ", task);
      });
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "task 20");
      EXPECT_EQ(error.code(), ErrorCode::device);
      EXPECT_EQ(ended, threads == 1 ? 21 : 50);
    }
  }
}

TEST(Parallel, NestedCallsRunInline) {
  std::atomic<int> inner{0};
  parallel_for(default_executor(2), 4, [&](std::int64_t, int) {
    parallel_for(default_executor(2), 10, [&](std::int64_t, int slot) {
      EXPECT_LT(slot, 2);
      ++inner;
    });
  });
  EXPECT_EQ(inner, 40);
}

TEST(Parallel, ThreadsAreThoseThatTheProcessMayUse) {
  EXPECT_GE(available_threads(), 1);
  set_num_threads(3);
  EXPECT_EQ(num_threads(), 3);
  EXPECT_EQ(default_executor(0).concurrency, 3);
  set_num_threads(0);
  EXPECT_EQ(num_threads(), available_threads());
}

}  // namespace
}  // namespace foveal::base
