// The MPI engine: this program runs itself under mpirun, with 2 and 3 processes. Skipped where there is no mpirun.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "check/check.h"
#include "dist/ranks.h"
#include "problem/line.h"

namespace foveal::dist {
namespace {

int run_under_mpi(int processes, const std::string& test, const std::string& options = "") {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = "OMP_NUM_THREADS=1 timeout 100 mpirun --oversubscribe --allow-run-as-root " + options + " -n " +
                              std::to_string(processes) + " " + self +
                              " --gtest_also_run_disabled_tests --gtest_brief=1 --gtest_filter=" + test + " >/dev/null";
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

TEST_F(Mpi, AHandleOfNoCommunicatorIsRefused) { EXPECT_EQ(run_under_mpi(1, "MpiRank.DISABLED_NoCommunicator"), 0); }
TEST_F(Mpi, ALateRankIsAnErrorOfTheOthers) { EXPECT_EQ(run_under_mpi(2, "MpiRank.DISABLED_Late"), 0); }
TEST_F(Mpi, AnErrorOfOneRankReachesTheOthersAtOnce) { EXPECT_EQ(run_under_mpi(3, "MpiRank.DISABLED_FailsInAPass"), 0); }
TEST_F(Mpi, RanksThatDisagreeAreToldWhereAndGoOn) { EXPECT_EQ(run_under_mpi(2, "MpiRank.DISABLED_Disagree"), 0); }
TEST_F(Mpi, AKilledRankIsAnErrorOfTheOthers) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string seen = std::filesystem::temp_directory_path() / ("foveal-killed-" + std::to_string(::getpid()));
  ::setenv("FOVEAL_TEST_SEEN", seen.c_str(), 1);
  run_under_mpi(2, "MpiRank.DISABLED_Killed", "--enable-recovery -x FOVEAL_TEST_SEEN");  // its status is that of the killed one
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 30.0);
  EXPECT_TRUE(std::filesystem::exists(seen)) << "the other rank saw no error of communication";
  std::filesystem::remove(seen);
}

/// A program of another MPI does not get Open MPI beside it, whose ranks would each be alone.
TEST(OtherMpi, IsRefusedByItsName) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      "timeout 100 " + self + " --gtest_also_run_disabled_tests --gtest_brief=1 --gtest_filter=MpiRank.DISABLED_OtherMpi";
  EXPECT_EQ(std::system((command + " >/dev/null").c_str()), 0);  // NOLINT(cert-env33-c): the test's own program
}

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

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return std::string(to_string(error.code())) + ": " + error.what();
  }
  return "";
}

TEST(MpiRank, DISABLED_NoCommunicator) {
  mpi_world();
  EXPECT_EQ(error_of([] { mpi_ranks(12345); }),
            "invalid_argument: mpi_ranks: 12345 is the handle of no communicator; expected what MPI_Comm_c2f() gives");
}

TEST(MpiRank, DISABLED_OtherMpi) {
  ASSERT_NE(dlopen(FOVEAL_MOCK_MPI, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  EXPECT_EQ(error_of([] { mpi_world(); }), "unsupported: MPI: the library is a mock of another MPI; expected Open MPI");
}

TEST(MpiRank, DISABLED_Late) {
  double mine = 0, all[2] = {};
  mpi_world(60)->all_gather(&mine, sizeof mine, all);  // both are here now, however long they took to start
  const auto world = mpi_world(0.5);
  if (world->rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(2));
  std::string error;  // what was sent to the late one has arrived; then it is told, too
  for (int i = 0; i < 2 && error.empty(); ++i) error = error_of([&] { world->all_gather(&mine, sizeof mine, all); });
  EXPECT_EQ(error, "communication: context parallelism: rank 0 waited 0.5 s for rank 1");
  double again[2] = {};
  mpi_world(60)->all_gather(&mine, sizeof mine, again);  // another communicator is as good as ever
}

TEST(MpiRank, DISABLED_FailsInAPass) {
  problem::CaseData data(problem::parse_line("backward f32 h2 q96 d8 mask=\"causal()\""));
  const auto world = mpi_world(60);
  const int rank = world->rank();
  ContextOptions options;
  options.unit = 8;
  const auto begin = std::chrono::steady_clock::now();
  const std::string error = error_of([&] {
    test::run_rank(world, data, options, [&](const ContextAttention&) {
      if (rank != 1) return;
      world->fail("its own reasons");
      throw Error(ErrorCode::device, "its own reasons");
    });
  });
  EXPECT_EQ(error, rank == 1 ? "device: its own reasons" : "communication: context parallelism: rank 1 failed: its own reasons");
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 20.0);
  EXPECT_EQ(error_of([&] { world->start({}, {}); }), "communication: context parallelism: rank 1 failed: its own reasons");
}

TEST(MpiRank, DISABLED_Disagree) {
  const auto world = mpi_world(60);
  WholeShapes shapes{.heads_q = 2, .heads_kv = 2, .seqlen_q = 64, .seqlen_kv = 64, .head_dim = 8, .head_dim_v = 8};
  WholeShapes others = shapes;
  if (world->rank() == 1) others.dtype = DType::bf16;
  const std::string error = error_of([&] { ContextAttention(world, {.mask = causal()}, others); });
  EXPECT_NE(error.find("ranks 0 and 1 differ in shapes and lengths: rank 0 has f32 batch 1"), std::string::npos) << error;
  ContextAttention(world, {.mask = causal()}, shapes);
}

TEST(MpiRank, DISABLED_Killed) {
  problem::CaseData data(problem::parse_line("backward f32 h2 q96 d8 mask=\"causal()\""));
  double mine = 0, all[2] = {};
  mpi_world(60)->all_gather(&mine, sizeof mine, all);
  const auto world = mpi_world(2);
  const std::string error = error_of([&] {
    test::run_rank(world, data, {}, [&](const ContextAttention&) {
      if (world->rank() == 1) ::raise(SIGKILL);
    });
  });
  if (error.rfind("communication: ", 0) == 0) std::ofstream(std::getenv("FOVEAL_TEST_SEEN")) << error;
  std::_Exit(0);  // MPI_Finalize waits for all
}

}  // namespace
}  // namespace foveal::dist
