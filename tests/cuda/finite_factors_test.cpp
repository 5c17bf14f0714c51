// Which factors of trained reads kernels need not look at for each term, and that such kernels look at none.
#include "cuda/score/finite_factors.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/check.h"
#include "cuda/jit/compile.h"
#include "cuda/launch/backward_sm90.h"
#include "cuda/tune/read_plan.h"
#include "machine_code.h"
#include "nvrtc_here.h"
#include "problems.h"

namespace foveal::cuda {
namespace {

using test::problem_of;

struct Found {
  std::vector<bool> reads;
  std::size_t walk, keys;
  bool checked;
};
Found found(const std::string& score, const std::string& rest = "") {
  std::string params;
  for (const char* param : {"c: real[4]", "x: real[512, 2]", "y: real[512, 2]"})
    if (score.find(std::string(1, param[0]) + "[") != std::string::npos) params += base::join(" param=\"", param, " grad\"");
  const problem::Problem p = problem_of(base::join("backward bf16 b2 h4 q512 d64 score=\"", score, "\"", params, " ", rest));
  const LineValues lines = sm90_backward_candidates(p, sm90_read_plan(p)).front().lines;
  const FiniteFactors factors = finite_factors(p, lines);
  return {factors.reads, factors.walk.size(), factors.keys.size(), lines.checked};
}
bool all(const std::vector<bool>& reads) { return std::find(reads.begin(), reads.end(), false) == reads.end(); }

TEST(FiniteFactors, ProductsAndSumsOfLinesAreSuch) {
  const Found product = found("score + x[q_idx, 0] * y[kv_idx, 1]");
  EXPECT_EQ(product.reads, (std::vector{true, true}));
  EXPECT_EQ(product.walk, 1u);
  EXPECT_EQ(product.keys, 1u);
  EXPECT_TRUE(product.checked);
  const Found distance = found("score - c[head] * ((x[q_idx, 0] - x[kv_idx, 0]) * (x[q_idx, 0] - x[kv_idx, 0]))");
  EXPECT_EQ(distance.reads, (std::vector{true, true, true}));
  EXPECT_EQ(distance.walk, 1u);
}

TEST(FiniteFactors, WhatMayOverflowOrDependsOnMoreIsNot) {
  EXPECT_EQ(found("score + c[head] * exp(x[q_idx, 0] * y[kv_idx, 1])").reads, (std::vector{false, false, false}));
  EXPECT_EQ(found("score + x[q_idx, 0] * y[kv_idx, 1]", "determinism=reproducible").reads,  // no warp evaluates lines
            (std::vector{true, false}));
  EXPECT_TRUE(all(found("score + (c[head] + y[kv_idx, 0]) * x[q_idx, 0]").reads));                 // a value of each key and head
  EXPECT_FALSE(all(found("score + (c[head] + x[q_idx, 0] * y[kv_idx, 0]) * x[q_idx, 1]").reads));  // c is of no line
  EXPECT_FALSE(found("score * x[q_idx, 0]").reads.front());                                        // the factor is the score
}

TEST(FiniteFactors, DegreesAreLimited) {
  const auto power = [](int n) {
    const std::string difference = "(x[q_idx, 0] - y[kv_idx, 0])";
    std::string text = "score + " + difference;
    for (int i = 1; i < n; ++i) text += " * " + difference;
    return all(found(text).reads);
  };
  EXPECT_TRUE(power(4));  // whose factors are of the third degree
  EXPECT_FALSE(power(5));
}

class TameKernels : public test::NeedsNvrtc {};

TEST_F(TameKernels, LookAtNoTermOfFullTiles) {
  const auto selects = [](const std::string& determinism) {
    const problem::Problem p = problem_of(
        "backward bf16 b2 h4 q512 d64 score=\"score + x[q_idx, 0] * y[kv_idx, 0]\" param=\"x: real[512, 1] "
        "grad\" param=\"y: real[512, 1] grad\"" +
        determinism);
    jit::KernelSource source = backward_sm90_source(p, sm90_backward_candidates(p, sm90_read_plan(p)).front());
    source.arch = "sm_90a";
    const auto image = jit::compile(source);
    EXPECT_FALSE(image->facts.serialized);
    return test::instructions_of(image->bytes)[0x00b];  // FSETP
  };
  EXPECT_GE(selects(" determinism=reproducible"), selects("") + 20);
}

}  // namespace
}  // namespace foveal::cuda
