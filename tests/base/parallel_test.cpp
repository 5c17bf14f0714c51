#include "base/parallel.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/check.h"
#include "own_folder.h"

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

using RunTask = std::function<void(std::int64_t, int)>;

TEST(Parallel, TwoTasksAtOnceInOneSlotAreAnError) {
  std::atomic<bool> begun{false}, refused{false};
  const Executor executor{2, [&](std::int64_t, const RunTask& fn) {
                            std::thread other([&fn] { fn(0, 1); });
                            while (!begun) std::this_thread::yield();
                            fn(1, 1);
                            refused = true;
                            other.join();
                          }};
  try {
    parallel_for(executor, 2, [&](std::int64_t task, int) {
      EXPECT_EQ(task, 0);
      begun = true;
      while (!refused) std::this_thread::yield();
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "options.executor: calls two tasks at once in slot 1; expected slots of their own");
  }
}

TEST(Parallel, TasksThatAThrowingExecutorLeftRunningEndBeforeTheCall) {
  std::atomic<bool> begun{false}, ended{false};
  std::thread other;
  const Executor executor{2, [&](std::int64_t, const RunTask& fn) {
                            other = std::thread([task = std::cref(fn)] { task(0, 0); });
                            while (!begun) std::this_thread::yield();
                            throw std::runtime_error("out of threads");
                          }};
  EXPECT_THROW(parallel_for(executor, 2,
                            [&](std::int64_t, int) {
                              begun = true;
                              std::this_thread::sleep_for(std::chrono::milliseconds(20));
                              ended = true;
                            }),
               std::runtime_error);
  EXPECT_TRUE(ended);
  other.join();
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
  if (std::getenv("FOVEAL_NUM_THREADS") == nullptr && std::getenv("OMP_NUM_THREADS") == nullptr) {
    EXPECT_EQ(num_threads(), available_threads());
  }
}

TEST(Parallel, TheLowestQuotaOfAllControlGroupsCounts) {
  namespace fs = std::filesystem;
  const test::OwnFolder own;
  const auto put = [&own](const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(own / path).parent_path());
    std::ofstream(own / path) << text << "\n";
  };
  const auto quota = [&](const std::string& groups) {
    put("groups", groups);
    return cpu_quota(own / "groups", own / "mounted");
  };
  put("mounted/a/b/cpu.max", "max 100000"), put("mounted/a/cpu.max", "150000 100000"), put("mounted/c/cpu.max", "400000 100000");
  EXPECT_EQ(quota("0::/a/b"), 1.5);
  EXPECT_EQ(quota("0::/c"), 4);
  EXPECT_EQ(quota("0::/c/not/there"), 4);
  put("mounted/cpu.max", "300000 100000");  // a container sees its own group as the root
  EXPECT_EQ(quota("0::/c"), 3);
  EXPECT_EQ(quota("0::/"), 3);
  put("mounted/cpu.max", "max 100000");
  put("mounted/cpu/d/cpu.cfs_quota_us", "50000"), put("mounted/cpu/d/cpu.cfs_period_us", "100000");
  put("mounted/cpu/e/cpu.cfs_quota_us", "-1"), put("mounted/cpu/e/cpu.cfs_period_us", "100000");
  EXPECT_EQ(quota("3:cpu,cpuacct:/d\n0::/"), 0.5);
  for (const char* none : {"3:cpu:/e", "3:cpuacct:/d", "0::/", "", "no group", "0::", "0::nothing", "::", "cpu.max"})
    EXPECT_TRUE(std::isinf(quota(none))) << none;
  for (const char* odd : {"", "max", "x y", "-1 100000", "100000 0", "100000", "nan 1"}) {
    put("mounted/f/cpu.max", odd);
    EXPECT_TRUE(std::isinf(quota("0::/f"))) << odd;
  }
}

TEST(Parallel, TheEnvironmentSaysHowManyThreads) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // each in a process of its own, for the environment is read once
  const auto threads_with = [](const char* own, const char* omp) {
    own == nullptr ? unsetenv("FOVEAL_NUM_THREADS") : setenv("FOVEAL_NUM_THREADS", own, 1);
    omp == nullptr ? unsetenv("OMP_NUM_THREADS") : setenv("OMP_NUM_THREADS", omp, 1);
    set_num_threads(0);
    std::_Exit(num_threads() == available_threads() ? 100 : num_threads());
  };
  EXPECT_EXIT(threads_with(nullptr, "37"), testing::ExitedWithCode(37), "");
  EXPECT_EXIT(threads_with(nullptr, "37,2"), testing::ExitedWithCode(37), "");
  EXPECT_EXIT(threads_with("41", "37"), testing::ExitedWithCode(41), "");
  EXPECT_EXIT(threads_with("many", "37"), testing::ExitedWithCode(37), "");
  EXPECT_EXIT(threads_with("-3", "0"), testing::ExitedWithCode(100), "");
  EXPECT_EXIT(threads_with(nullptr, nullptr), testing::ExitedWithCode(100), "");
}

TEST(Parallel, RunsInAForkedChildOfAProcessThatRan) {
  std::atomic<int> runs{0};
  const auto run = [&] {
    parallel_for(default_executor(3), 100, [&](std::int64_t, int) { ++runs; });
    parallel_for(default_executor(3), 10,
                 [&](std::int64_t, int) { parallel_for(default_executor(3), 10, [&](std::int64_t, int) { ++runs; }); });
    return runs.exchange(0);
  };
  ASSERT_EQ(run(), 200);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);  // a child that waits for threads it does not have would wait for ever
    std::_Exit(run() == 200 && run() == 200 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(run(), 200);
}

}  // namespace
}  // namespace foveal::base
