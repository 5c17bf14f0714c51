// The tolerance rule must pass what is right and fail what is a little wrong.
#include "check/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "base/random.h"
#include "check/check.h"
#include "check/run.h"

namespace foveal::check {
namespace {

struct Tensors {
  std::vector<double> exact, naive, found;
};

/// 64 rows of 32: `found` is as well rounded as the naive result.
Tensors tensors(DType dtype) {
  Tensors t;
  base::Random random(3);
  for (int i = 0; i < 64 * 32; ++i) {
    const double x = random.normal();
    t.exact.push_back(x);
    t.naive.push_back(base::round_to(dtype, x * (1 + 0.5 * base::epsilon(dtype) * random.normal())));
    t.found.push_back(base::round_to(dtype, x * (1 + 0.5 * base::epsilon(dtype) * random.normal())));
  }
  return t;
}

class Compare : public testing::TestWithParam<DType> {
 protected:
  /// The exact result is no more exact than the naive one in f64, whose rule is wider therefore.
  static double slack() { return GetParam() == DType::f64 ? 3 : 1; }
  static TensorReport judge(const Tensors& t) { return compare("out", GetParam(), t.found, t.exact, t.naive, nullptr, 32); }
};

TEST_P(Compare, PassesWhatIsRight) {
  const TensorReport report = judge(tensors(GetParam()));
  EXPECT_TRUE(report.pass) << report.failure;
  EXPECT_GT(report.max_error, 0);
}

TEST_P(Compare, FailsAnElementThatIsOff) {
  Tensors t = tensors(GetParam());
  t.found[500] += 16 * slack() * base::epsilon(GetParam());
  EXPECT_FALSE(judge(t).pass);
}

TEST_P(Compare, FailsASmallBias) {
  Tensors t = tensors(GetParam());
  for (double& value : t.found) value *= 1 + 6 * slack() * base::epsilon(GetParam());
  EXPECT_FALSE(judge(t).pass);
}

TEST_P(Compare, FailsASmallRowBesideLargeOnes) {
  Tensors t = tensors(GetParam());
  const double small = GetParam() == DType::f64 || GetParam() == DType::f32 ? 1e-3 : 0.2;
  for (std::size_t i = 320; i < 352; ++i) t.exact[i] *= small, t.naive[i] *= small, t.found[i] = 0;
  const TensorReport report = judge(t);
  EXPECT_FALSE(report.pass);
}

TEST_P(Compare, InfinitiesAndNaNsMustBeInPlace) {
  Tensors t = tensors(GetParam());
  t.exact[7] = t.naive[7] = t.found[7] = -INFINITY;
  EXPECT_TRUE(judge(t).pass);
  t.found[7] = INFINITY;
  EXPECT_FALSE(judge(t).pass);
  t.found[7] = 0;
  EXPECT_FALSE(judge(t).pass);
  t = tensors(GetParam());
  t.found[9] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(judge(t).pass);
  t.exact[9] = t.found[9];
  EXPECT_TRUE(judge(t).pass);
  t.found[9] = 1;
  EXPECT_FALSE(judge(t).pass);
}

INSTANTIATE_TEST_SUITE_P(Types, Compare, testing::Values(DType::f64, DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(Check, EveryTypePasses) {
  for (const char* dtype : {"f32", "bf16", "f16", "f64"}) {
    const Report report = check_line(problem::parse_line(std::string("forward ") + dtype + " b1 h2 q40 d32 mask=\"causal()\""));
    EXPECT_TRUE(report.pass) << report.failure;
    EXPECT_TRUE(report.kernel.starts_with("cpu.")) << report.kernel;
    EXPECT_EQ(report.tensors.size(), 2u);
  }
}

TEST(Check, GradientsOfOneNumberThatAreOffFail) {
  for (const char* text : {"backward f32 b1 h1 q34 d2 param=\"p: real[1] grad\" sink=p seed=1179329375 inputs=adversarial",
                           "backward f32 b1 h2 q30 d16 score=\"tanh(score / p[]) * p[]\" param=\"p: real[] uniform(2, 4) grad\"",
                           "backward f64 b1 h2 q30 d16 score=\"tanh(score / p[]) * p[]\" param=\"p: real[] uniform(2, 4) grad\"",
                           "backward f32 b1 h2 q30 d16 score=\"score * sigmoid(p[head])\" param=\"p: real[2] grad\""}) {
    const problem::Line line = problem::parse_line(text);
    const Checker checker(line);
    const auto report = [&](double factor) {
      return checker.judge([&](problem::CaseData& data) {
        const std::string kernel = run_case(data, {});
        const TensorView gradient = data.dparam(0);
        for (std::int64_t i = 0; i < (gradient.rank > 0 ? gradient.sizes[0] : 1); ++i)
          base::store(gradient.data, gradient.dtype, i, base::load(gradient.data, gradient.dtype, i) * factor);
        return kernel;
      });
    };
    EXPECT_TRUE(report(1).pass) << text;
    EXPECT_FALSE(report(line.dtype == DType::f64 ? 1 + 1e-11 : 1 + 2e-4).pass) << text;
  }
}

TEST(Check, ARefusalIsNeitherPassNorFailure) {
  const Report report = check_line(problem::parse_line("forward f32 q4 d1100 backend=cpu"));
  EXPECT_TRUE(report.refused);
  EXPECT_FALSE(report.pass);
  EXPECT_NE(report.failure.find("1100"), std::string::npos) << report.failure;
}

}  // namespace
}  // namespace foveal::check
