// Infinity and NaN reach the pairs that the mask, the score and dropout keep, and no others: on every CPU target, and on AMX by the model
// of its tiles. The reference says which elements they reach; the others are judged by the tolerance rule as always.
#include <gtest/gtest.h>

#include <limits>

#if defined(__x86_64__)
#include "amx_model_run.h"
#endif
#include "check/check.h"
#include "check/run.h"
#include "poison.h"

namespace foveal::cpu {
namespace {

using problem::CaseData;
using test::Poison;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

struct Case {
  const char* name;
  const char* problem;  ///< one batch row of two heads
  std::vector<Poison> poisons;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      // Key 40 is dropped for the queries before it and kept for those after, within one tile.
      {"causal_v", "q150 d33:17 mask=causal()", {{"v", 40, nan, true}, {"v", 100, infinity, false}}},
      {"causal_k", "q150 d40 mask=causal()", {{"k", 41, nan, false}, {"k", 149, -infinity, true}}},
      {"causal_rows", "q150 d24 mask=causal()", {{"q", 77, nan, false}, {"dout", 30, infinity, false}, {"dout", 31, nan, true}}},
      // Before the first kept key and behind the last one.
      {"window",
       "q200 d32 mask=\"(kv_idx <= q_idx) & (q_idx - kv_idx < 20)\"",
       {{"v", 3, nan, true}, {"v", 70, nan, false}, {"k", 130, nan, true}}},
      {"tail", "q70:131 d16 mask=\"kv_idx < 130\"", {{"k", 130, nan, true}, {"v", 130, nan, true}}},
      {"odd_tail", "q33:77 d16 mask=\"kv_idx < 67 + q_idx % 2\"", {{"v", 67, infinity, true}, {"v", 76, nan, true}, {"k", 75, nan, true}}},
      {"program_mask",
       "q90 d16 mask=\"(q_idx + kv_idx) % 3 != 0\"",
       {{"v", 11, nan, false}, {"k", 50, nan, true}, {"dout", 60, nan, false}}},
      {"score_drops",
       "q90 d16 score=\"where((q_idx + kv_idx) % 2 == 0, score, -inf)\"",
       {{"v", 11, nan, true}, {"k", 52, nan, true}, {"q", 9, nan, true}}},
      // The same where no analysis of the score tells.
      {"logarithm_drops", "q90 d16 score=\"score + log((q_idx + kv_idx) % 2)\"", {{"v", 11, nan, true}, {"v", 52, infinity, false}}},
      // A score that turns infinite dot products into numbers: weights are finite, what they multiply is not.
      {"bounded_score",
       "q80 d16 mask=\"kv_idx <= q_idx\" score=\"3 * tanh(score)\"",
       {{"k", 30, infinity, false}, {"q", 60, -infinity, false}}},
      {"dropout", "q80 d16 dropout=0.4", {{"v", 11, nan, true}, {"v", 30, infinity, false}}},
      {"grouped", "q40:90 d16 mask=\"kv_idx <= q_idx + 50\"", {{"v", 60, nan, true}, {"dout", 20, nan, false}}},
      // Finite, but maxima must rise in the middle of a pass, each time in one half of 32 keys only.
      {"large_keys", "q40:150 d16", {{"k", 55, 300, true}, {"k", 70, 1e5, true}, {"k", 125, 3e7, true}}},
      // The same in wide blocks of many keys, and beyond a diagonal in one.
      {"wide_large_keys", "q40:600 d96", {{"k", 55, 300, true}, {"k", 270, 1e5, true}, {"k", 515, 3e7, true}}},
      {"wide_causal", "q290 d96:72 mask=causal()", {{"k", 41, nan, false}, {"k", 270, -infinity, true}, {"q", 130, nan, true}}},
      {"pieces", "q2:3000 d16 mask=\"kv_idx <= q_idx + 2500\"", {{"v", 2501, nan, true}, {"k", 2900, nan, true}}},
  };
  return all;
}

void judge(const Case& c, const std::string& dtype, const std::string& words, const std::string& target, const check::Report& report) {
  EXPECT_TRUE(report.pass || report.refused) << c.name << " " << dtype << " " << words << " on " << target << ": " << report.failure;
}

class Nonfinite : public testing::TestWithParam<Case> {
 protected:
  void expect_right(const std::string& pass, const std::string& dtype, const std::string& words) {
    CaseData data(problem::parse_line(pass + " " + dtype + " b1 h" + (std::string(GetParam().name) == "grouped" ? "4:2 " : "2 ") +
                                      GetParam().problem + words));
    for (const Poison& p : GetParam().poisons)
      if (data.view(p.role).present()) poison(data, p);
    const foveal::check::Checker checker(std::move(data));
    int judged = 0;
    for (const TargetInfo& target : foveal::targets()) {
      if (target.backend != "cpu" || !target.available) continue;
      judge(GetParam(), dtype, pass + words, target.target, checker({.backend = "cpu", .target = target.target, .threads = 1}));
      ++judged;
    }
    EXPECT_GT(judged, 0);
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (dtype == "bf16" && __builtin_cpu_supports("avx512bf16"))
      judge(GetParam(), dtype, pass + words, "the AMX model", checker.judge(run_amx_model));
#endif
  }
};

TEST_P(Nonfinite, Forward) {
  for (const char* dtype : {"f32", "bf16", "f16", "f64"}) expect_right("forward", dtype, "");
}

TEST_P(Nonfinite, Backward) {
  for (const char* strategy : {"fused", "split", "two_scan"})
    for (const char* dtype : {"f32", "bf16"}) expect_right("backward", dtype, std::string(" strategy=") + strategy);
  expect_right("backward", "f64", "");
}

INSTANTIATE_TEST_SUITE_P(Cases, Nonfinite, testing::ValuesIn(cases()), [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foveal::cpu
