// Random problems on random numbers of ranks, against the reference by the tolerance rule.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/check.h"
#include "check/check.h"
#include "dist/ranks.h"
#include "problem/line.h"
#include "problem/random_line.h"

namespace foveal::dist {
namespace {

ContextOptions random_options(base::Random& random, const problem::Line& line, int ranks) {
  static constexpr const char* deals[] = {"automatic", "contiguous", "zigzag", "pieces"};
  static constexpr std::int64_t units[] = {1, 5, 8, 16, 31, 128};
  ContextOptions options;
  options.deal = deals[random.integer(0, 3)];
  options.unit = units[random.integer(0, 5)];
  options.remote_steps = static_cast<int>(random.integer(0, 4));
  const auto groups = static_cast<int>(random.integer(0, 4));
  if (groups == 0 || (ranks % groups == 0 && line.heads_kv % groups == 0)) options.head_groups = groups;
  return options;
}

std::string text_of(const ContextOptions& options) {
  return base::join("deal=", options.deal, " unit=", options.unit, " remote_steps=", options.remote_steps,
                    " head_groups=", options.head_groups);
}

/// FOVEAL_TEST_LINES=FIRST,COUNT: other ones than those of every run.
TEST(RandomRanks, AreOneDevice) {
  int first = 0, count = 300;
  if (const char* given = std::getenv("FOVEAL_TEST_LINES")) std::sscanf(given, "%d,%d", &first, &count);
  for (int seed = first; seed < first + count; ++seed) {
    base::Random random(static_cast<std::uint64_t>(seed) + 77);
    problem::Line line = problem::random_line(random, {.seqlen = 90, .head_dim = 48, .pairs = 60000});
    if (line.page_size > 0) continue;
    const int ranks = static_cast<int>(random.integer(1, 8));
    const ContextOptions options = random_options(random, line, ranks);
    SCOPED_TRACE(base::join("seed ", seed, ": ", to_string(line), "\n", ranks, " ranks, ", text_of(options)));
    const check::Checker checker(line);
    try {
      const check::Report report =
          checker.judge([&](problem::CaseData& data) { return test::run_line(data, ranks, options, {.time_limit = 20}); });
      EXPECT_TRUE(report.pass) << report.failure;
    } catch (const Error& error) {
      ADD_FAILURE() << to_string(error.code()) << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace foveal::dist
