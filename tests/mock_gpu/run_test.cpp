// What a plan promises about its runs: they neither allocate nor lock. Counted over the problem lines of the kernels' tests.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <fstream>

#include "counted_allocations.h"
#include "mock_driver.h"
#include "mock_plan.h"

namespace {
std::atomic<long> locks{0};
}

/// Takes the place of the C library's, also for std::mutex.
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto next = reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  ++locks;
  return next(mutex);
}

namespace foveal {
namespace {

std::vector<std::string> lines_of(const std::string& name) {
  std::ifstream file(std::string(FOVEAL_SOURCE_DIR) + "/" + name);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  EXPECT_FALSE(lines.empty()) << name;
  return lines;
}

/// The second run of each line, on kernels of two architectures; returns how many plans there were.
int expect_quiet_runs(const std::string& name, std::size_t step) {
  int plans = 0;
  const std::vector<std::string> lines = lines_of(name);
  for (std::size_t i = 0; i < lines.size(); i += step) {
    if (problem::parse_line(lines[i]).attention.checked) continue;  // such a run reads the device's memory
    for (const char* arch : {"sm_90a", "sm_80"}) {
      std::unique_ptr<test::MockPlan> plan;
      try {
        plan = std::make_unique<test::MockPlan>(problem::parse_line(lines[i]), arch);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::unsupported) << lines[i] << ": " << error.what();
        continue;
      }
      plan->run();
      const long launches_before = mock::device().launches, allocations_before = allocations, locks_before = locks;
      plan->run();
      EXPECT_EQ(allocations - allocations_before, 0) << arch << ": " << lines[i];
      EXPECT_EQ(locks - locks_before, 0) << arch << ": " << lines[i];
      EXPECT_GT(mock::device().launches, launches_before) << arch << ": " << lines[i];
      ++plans;
    }
  }
  return plans;
}

TEST(GpuRun, TheCountersCount) {
  const long allocations_before = allocations, locks_before = locks;
  std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto memory = std::make_unique<int>(7);
  EXPECT_EQ(*memory, 7);
  EXPECT_GE(locks - locks_before, 1);
  EXPECT_GE(allocations - allocations_before, 1);
}

TEST(GpuRun, NeitherAllocatesNorLocks) {
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/shapes.txt", 2), 50);
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/programs.txt", 5), 50);
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/few_queries.txt", 10), 20);
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/pages.txt", 1), 90);
}

TEST(GpuRun, NeitherAllocatesNorLocksWhereParametersAreTrained) {
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/trained_dims.txt", 7), 50);
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/reads.txt", 1), 50);
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/wide.txt", 10), 10);
  EXPECT_GT(expect_quiet_runs("tests/cuda/lines/reproducible.txt", 1), 10);
}

TEST(Runs, CheckedOnesNameAPageOrALengthThatCannotBe) {
  test::MockPlan plan(problem::parse_line("forward bf16 b2 h2 q9:64 d64 pages=16:8 checked"), "sm_80");
  std::vector<std::int32_t> pages{0, 1, 2, 3, 4, 99, 5, 6}, lengths{64, 40};
  plan.buffers.block_table.data = pages.data(), plan.buffers.seqlens_kv.data = lengths.data();  // the mock device's memory is the host's
  const auto message = [&] {
    try {
      plan.run();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing thrown");
  };
  EXPECT_EQ(plan.problem.pages(), 8);
  EXPECT_NE(message().find("block_table: page 99 at [1, 1]; expected 0 to 7"), std::string::npos) << message();
  pages[5] = 7, lengths[1] = 65;
  EXPECT_NE(message().find("seqlens_kv: 65 of sequence 1; expected 0 to 64"), std::string::npos) << message();
  lengths[1] = -1;
  EXPECT_NE(message().find("seqlens_kv: -1 of sequence 1"), std::string::npos) << message();
  lengths[1] = 40;
  EXPECT_EQ(message(), "nothing thrown");
}

}  // namespace
}  // namespace foveal
