// Lines with sample=N: some queries stand for all.
#include <gtest/gtest.h>

#include <algorithm>

#include "check/check.h"
#include "check/run.h"

namespace foveal::check {
namespace {

using problem::CaseData;
using problem::parse_line;
using problem::sampled_queries;

TEST(Sample, SpreadsOverTheSequence) {
  EXPECT_TRUE(sampled_queries(parse_line("forward f32 b1 h1 q100 d8")).empty());
  const std::vector<bool> sampled = sampled_queries(parse_line("forward f32 b1 h1 q1000 d8 sample=10"));
  ASSERT_EQ(sampled.size(), 1000u);
  EXPECT_TRUE(sampled.front() && sampled.back());
  for (int stretch = 0; stretch < 10; ++stretch)
    EXPECT_EQ(std::count(sampled.begin() + 100 * stretch, sampled.begin() + 100 * (stretch + 1), true), 1);
  const std::vector<bool> all = sampled_queries(parse_line("forward f32 b1 h1 q7 d8 sample=10"));
  EXPECT_EQ(std::count(all.begin(), all.end(), true), 7);
}

class Sampled : public testing::TestWithParam<const char*> {};

TEST_P(Sampled, PassesWhereEveryQueryPasses) {
  for (const char* dtype : {"f64", "f32", "bf16"}) {
    const Report report = check_line(parse_line(std::string(GetParam()) + " " + dtype));
    EXPECT_TRUE(report.pass) << report.failure << "\n" << report.line;
  }
}

TEST_P(Sampled, FindsWhatIsWrongInTheSampleAlone) {
  const problem::Line line = parse_line(std::string(GetParam()) + " f32");
  const Checker checker(line);
  const std::vector<bool> sampled = sampled_queries(line);
  const bool forward = line.pass == Pass::forward;
  for (const bool inside : {true, false}) {
    const auto query = std::find(sampled.begin() + 1, sampled.end(), inside) - sampled.begin();
    const Report report = checker.judge([&](CaseData& data) {
      const std::string kernel = run_case(data, {});
      const TensorView view = data.view(forward ? "out" : "dq");
      const auto tokens = static_cast<std::size_t>(view.rank - 3);
      static_cast<float*>(view.data)[query * view.strides[tokens]] += 1;
      return kernel;
    });
    EXPECT_EQ(report.pass, !inside) << report.line;
  }
}

INSTANTIATE_TEST_SUITE_P(Lines, Sampled,
                         testing::Values("forward b2 h4:2 q90:70 d16 mask=\"causal()\" sample=9",
                                         "backward b2 h4:2 q90:70 d16 dlse score=\"score + t[q_idx]\" param=\"t: real[90] grad\" sample=9",
                                         "backward h2 d8 lengths=40,3,57 mask=\"causal()\" sink=s param=\"s: real[2] grad\" sample=12"));

TEST(Sample, OnlySampledQueriesHaveGradients) {
  const CaseData data(parse_line("backward f32 b2 h3 q50 d4 dlse layout=bhsd sample=5"));
  const std::vector<bool> sampled = sampled_queries(data.line());
  const std::vector<double> dout = problem::values_of(data.view("dout")), dlse = problem::values_of(data.view("dlse"));
  for (std::size_t i = 0; i < dout.size(); ++i) EXPECT_EQ(dout[i] != 0, sampled[i / 12 % 50]) << i;  // [batch, seqlen, heads, dim]
  for (std::size_t i = 0; i < dlse.size(); ++i) EXPECT_EQ(dlse[i] != 0, sampled[i % 50]) << i;       // [batch, heads, seqlen]
}

}  // namespace
}  // namespace foveal::check
