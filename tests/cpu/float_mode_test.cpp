// The floating-point mode of the caller neither reaches the results nor is changed: rounding, denormals, traps.
#include "base/float_mode.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cstring>

#include "check/run.h"
#include "problem/line.h"

namespace foveal::cpu {
namespace {

using problem::CaseData;

constexpr const char* line =
    "backward f32 h2 q150 d32 mask=\"causal() & (q_idx > 3)\" score=\"30 * tanh(score / 30) + t[head]\" param=\"t: real[2] grad\"";

/// Results of both passes, and checks that the mode is the caller's afterwards.
CaseData results_under(base::FloatMode mode, const PlanOptions& options) {
  CaseData data(problem::parse_line(line));
  data.clear_outputs(Pass::forward), data.clear_outputs(Pass::backward);
  const base::FloatMode own = base::float_mode();
  base::set_float_mode(mode);
  std::string failure;
  try {
    check::run_case(data, options);
  } catch (const Error& error) {
    failure = error.what();
  }
  const base::FloatMode after = base::float_mode();
  base::set_float_mode(own);
  EXPECT_EQ(failure, "");
  constexpr base::FloatMode raised = 0x3f;  // of x86, which code around the passes may raise
  EXPECT_EQ(after & ~raised, mode & ~raised);
  return data;
}

void expect_equal(const CaseData& a, const CaseData& b, const std::string& what) {
  for (std::size_t i = 0; i < a.blocks().size(); ++i) {
    const CaseData::Block &x = a.blocks()[i].second, &y = b.blocks()[i].second;
    EXPECT_EQ(std::memcmp(x.bytes.get(), y.bytes.get(), x.size), 0) << a.blocks()[i].first << what;
  }
}

TEST(FloatMode, OfTheCallerDoesNotMatterAndStays) {
#if defined(__x86_64__)
  const base::FloatMode modes[] = {0x3F80, 0x5F80, 0x7F80, 0x9FC0, 0x1D00};  // up, down, towards zero, denormals are zeros, traps
#elif defined(__aarch64__)
  const base::FloatMode modes[] = {1u << 22, 2u << 22, 3u << 22, 1u << 24};
#else
  const base::FloatMode modes[] = {0};
#endif
  for (const TargetInfo& target : targets()) {
    if (target.backend == "cuda" || !target.available) continue;
    for (const int threads : {1, 3}) {
      const PlanOptions options{.backend = target.backend, .target = target.target, .threads = threads};
      const CaseData plain = results_under(base::plain_floats, options);
      for (const base::FloatMode mode : modes)
        expect_equal(plain, results_under(mode, options), " under mode " + std::to_string(mode) + " on " + target.target);
    }
  }
}

}  // namespace
}  // namespace foveal::cpu
