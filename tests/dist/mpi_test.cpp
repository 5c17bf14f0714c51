// The MPI engine: this program runs itself under mpirun, with 2 and 3 processes. Skipped where there is no mpirun.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "check/check.h"
#include "dist/ranks.h"
#include "problem/line.h"

namespace foveal::dist {
namespace {

int run_under_mpi(int processes, const std::string& test) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = "OMP_NUM_THREADS=1 timeout 100 mpirun --oversubscribe --allow-run-as-root -n " + std::to_string(processes) +
                              " " + self + " --gtest_also_run_disabled_tests --gtest_brief=1 --gtest_filter=" + test + " >/dev/null";
  return std::system(command.c_str());  // NOLINT(cert-env33-c): the test's own program
}

class Mpi : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun >/dev/null 2>&1") != 0)
      GTEST_SKIP() << "no mpirun here (Debian: openmpi-bin)";  // NOLINT(cert-env33-c)
  }
};

TEST_F(Mpi, TwoAndThreeProcessesGiveTheResultsOfOneDevice) {
  EXPECT_EQ(run_under_mpi(2, "MpiRank.DISABLED_Lines"), 0);
  EXPECT_EQ(run_under_mpi(3, "MpiRank.DISABLED_Lines"), 0);
}

TEST_F(Mpi, ALateRankIsAnErrorOfTheOthers) { EXPECT_EQ(run_under_mpi(2, "MpiRank.DISABLED_Late"), 0); }

/// The rows that each process computed, put together in all of them: what a process did not write is NaN.
void share(Transport& transport, const TensorView& view) {
  std::vector<double> mine = problem::values_of(view), all(mine.size() * static_cast<std::size_t>(transport.size()));
  transport.all_gather(mine.data(), mine.size() * sizeof(double), all.data());
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!std::isnan(all[i])) mine[i % mine.size()] = all[i];
  problem::set_values(view, mine);
}

TEST(MpiRank, DISABLED_Lines) {
  const auto world = mpi_world(60);
  for (const char* text :
       {"forward f32 b2 h4:2 q90 d16 mask=\"causal()\" dropout=0.2:5", "backward bf16 h4:2 q120 d16 mask=\"causal() & window(40)\" dlse",
        "backward f32 h2 d16 lengths=50,31,20 mask=\"causal()\" score=\"score + rel[q_idx - kv_idx]\" param=\"rel: real[50] f32 "
        "normal(0.5) grad\" "
        "sink=s param=\"s: real[2] f32 normal(1) grad\""}) {
    const check::Checker checker(problem::parse_line(text));
    for (const int head_groups : {1, 2}) {
      if (world->size() % head_groups != 0) continue;
      const check::Report report = checker.judge([&](problem::CaseData& data) {
        ContextOptions options;
        options.unit = 8, options.head_groups = head_groups;
        test::run_rank(world, data, options);
        for (const char* role : {"out", "lse", "dq", "dk", "dv"})
          if (data.view(role).present()) share(*world, data.view(role));
        for (std::size_t i = 0; i < data.line().params.size(); ++i)
          if (data.line().params[i].grad) share(*world, data.dparam(i));
        return "mpi";
      });
      EXPECT_TRUE(report.pass) << text << ": " << report.failure;
    }
  }
}

TEST(MpiRank, DISABLED_Late) {
  double mine = 0, all[2] = {};
  mpi_world(60)->all_gather(&mine, sizeof mine, all);  // both are here now, however long they took to start
  const auto world = mpi_world(0.5);
  if (world->rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    world->all_gather(&mine, sizeof mine, all);  // what rank 0 sent has arrived
    return;
  }
  try {
    world->all_gather(&mine, sizeof mine, all);
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::communication);
    EXPECT_STREQ(error.what(), "context parallelism: rank 0 waited 0.5 s for rank 1");
  }
  std::this_thread::sleep_for(std::chrono::seconds(3));
}

}  // namespace
}  // namespace foveal::dist
