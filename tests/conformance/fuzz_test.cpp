// Random problems on every target of this machine. A failure prints the line: `foveal check "<line>"` replays it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "check/check.h"
#include "problem/random_line.h"

namespace foveal {
namespace {

int problems() {
  const char* wanted = std::getenv("FOVEAL_FUZZ_PROBLEMS");
  return wanted == nullptr ? 150 : std::atoi(wanted);
}

TEST(Fuzz, RandomProblemsKeepTheToleranceRule) {
  constexpr std::uint64_t seed = 20260;
  std::map<std::string, int> passed, refused;
  for (int i = 0; i < problems(); ++i) {
    base::Random random(seed + static_cast<std::uint64_t>(i));
    const problem::Line line = problem::random_line(random);
    const check::Checker check(line);
    for (const TargetInfo& target : targets()) {
      if (!target.available || target.backend == "cuda") continue;
      const check::Report report = check({.backend = target.backend, .target = target.target, .threads = 1 + i % 2, .executor = nullptr});
      if (report.refused) {
        ++refused[target.target];
        continue;
      }
      EXPECT_TRUE(report.pass) << report.line << "\n" << report.failure;
      EXPECT_NE(report.kernel.find(target.backend), std::string::npos) << report.kernel;
      ++passed[target.target];
    }
  }
  for (const TargetInfo& target : targets())
    if (target.available && target.backend != "cuda") {
      EXPECT_GT(passed[target.target], refused[target.target]) << target.target;
    }
}

}  // namespace
}  // namespace foveal
