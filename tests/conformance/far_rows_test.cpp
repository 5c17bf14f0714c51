// Rows whose scores are all about one large finite number: soft masks of -1e9 or of the least number of a type over all keys of a row,
// scores that are large themselves. lse has lost the digits of log(sum) there.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "check/check.h"

namespace foveal {
namespace {

constexpr const char* constants[] = {"-1e4", "-1e5", "-1e6", "-1e7", "-1e9", "-1e12", "-1e30", "-3.0e38", "-3.4028234663852886e38",
                                     "1e5",  "3e38"};

struct Row {
  const char* name;
  const char* line;  ///< C stands for the constant
};
std::ostream& operator<<(std::ostream& stream, const Row& row) { return stream << row.name; }

constexpr Row rows[] = {
    // Rows of all kinds side by side: far ones at the left, half-masked ones, plain ones.
    {"soft_mask", "b2 h2 q40:70 d16 score=\"score + mask[q_idx, kv_idx]\" param=\"mask: real[40, 70] constant(C)\""},
    {"padding", R"~(b1 h2 q40:70 d16 score="where(q_idx < 20, C, where(kv_idx < q_idx, C, score))")~"},
    {"added", R"~(b1 h2 q40:70 d16 score="where(q_idx < 20 or kv_idx < 30, score + C, score)")~"},
    {"one_key", R"~(b1 h1 q40:90 d16 score="where(kv_idx == 7, score, C)")~"},
    {"trained",
     R"~(b1 h2 q40:70 d16 score="where(q_idx < 20, C, 0.0) + score + t[clamp(kv_idx - q_idx, -5, 5) + 5]" param="t: real[11] grad")~"},
    {"sink", R"~(b1 h2 q40:70 d16 score="where(q_idx < 20, C, score)" sink=s param="s: real[2] grad")~"},
    {"far_sink", "b1 h2 q40:70 d16 score=\"where(q_idx < 20, C, score)\" sink=s param=\"s: real[2] constant(C) grad\""},
    {"causal", R"~(b1 h4:2 q70 d16:24 mask="causal()" score="where(kv_idx < 40, score + C, score)")~"},
    {"hard", R"~(b1 h2 q40 d16 mask="(q_idx + kv_idx) % 3 != 0" score="where(kv_idx < 20, -inf, where(q_idx % 2 == 0, C, score))")~"},
    {"dropout", R"~(b1 h2 q40 d16 score="where(q_idx < 20, score + C, score)" dropout=0.2:7)~"},
    {"packed", R"~(h4:2 d16 lengths=40:50,5:3,33 mask="causal()" score="where(q_idx < 20, score + C, score)")~"},
    {"dlse", R"~(b1 h2 q40 d16 score="where(q_idx < 40, score + C, score)" @dlse)~"},
};

std::string with(const Row& row, const std::string& constant) {
  std::string text = row.line;
  for (std::size_t at = 0; (at = text.find('C', at)) != std::string::npos; at += constant.size()) text.replace(at, 1, constant);
  return text;
}

/// The line on all targets; how many kernels ran.
void check_on_targets(const std::string& text) {
  const check::Checker check(problem::parse_line(text));
  for (const TargetInfo& target : targets()) {
    if (!target.available || target.backend == "cuda") continue;
    const check::Report report = check({.backend = target.backend, .target = target.target, .threads = 1, .executor = nullptr});
    if (report.refused && target.backend != "reference") continue;
    EXPECT_TRUE(report.pass) << report.line << "\n" << report.kernel << ": " << report.failure;
  }
}

class FarRows : public testing::TestWithParam<Row> {};

TEST_P(FarRows, KeepTheToleranceRule) {
  for (const char* constant : constants) {
    std::string text = with(GetParam(), constant);
    const std::size_t backward_only = text.find(" @");
    for (const char* dtype : {"f32 ", "bf16 ", "f16 ", "f64 "}) {
      check_on_targets(std::string("forward ") + dtype + text.substr(0, backward_only));
      std::string backward = text;
      if (backward_only != std::string::npos) backward.erase(backward_only + 1, 1);
      check_on_targets(std::string("backward ") + dtype + backward);
    }
    for (const char* strategy : {" strategy=fused", " strategy=split", " strategy=two_scan"}) {
      std::string backward = text;
      if (backward_only != std::string::npos) backward.erase(backward_only + 1, 1);
      check_on_targets("backward f32 " + backward + strategy);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, FarRows, testing::ValuesIn(rows), [](const auto& row) { return std::string(row.param.name); });

TEST(FarRows, OfLargeDotProducts) {
  for (const char* scale : {"1e3", "1e6", "1e9", "1e20", "1e30", "1e37"})
    for (const char* dtype : {"f32 ", "bf16 ", "f16 ", "f64 "})
      for (const char* pass : {"forward ", "backward "})
        for (const char* rest : {"b1 h2 q130:150 d64 scale=", "b1 h2 q40:70 d16 mask=\"causal()\" scale=", "b1 h1 q2:4096 d16 scale="})
          check_on_targets(std::string(pass) + dtype + rest + scale);
}

TEST(FarRows, OfTheLeastDouble) {
  for (const char* pass : {"forward ", "backward "})
    for (const char* constant : {"-1e100", "-1.7e308", "-1.7976931348623157e308"})
      check_on_targets(std::string(pass) + "f64 b1 h2 q40 d16 score=\"where(q_idx < 20, " + constant + ", score)\"");
}

}  // namespace
}  // namespace foveal
