// The programs that compile() hands to backends: values, gradients, reductions, and the errors of wrong requests.
#include <gtest/gtest.h>

#include <cmath>

#include "foveal/masks.h"
#include "score/evaluate.h"
#include "score/program.h"

namespace foveal {
namespace {

using namespace symbols;
using scoring::compile;
using scoring::Reduction;
using scoring::Request;
using scoring::ScoreProgram;

ScoreProgram trained(const Expr& score_mod, const std::vector<Param>& params, std::vector<bool> wants = {}) {
  if (wants.empty()) {
    for (const Param& param : params) wants.push_back(param.type() == Type::real);
  }
  return compile({.score_mod = score_mod, .mask = {}, .params = params, .wants_gradient = wants, .backward = true});
}

TEST(Compile, AbsentScoreAndMaskAreEmptyPrograms) {
  const ScoreProgram program = compile({.score_mod = {}, .mask = {}, .params = {}, .wants_gradient = {}, .backward = true});
  EXPECT_TRUE(program.forward.empty());
  EXPECT_TRUE(program.mask.empty());
  EXPECT_EQ(program.text, "score_mod=score; mask=True");
  EXPECT_EQ(program.backward.code[static_cast<std::size_t>(program.dscore)].real, 1.0);
}

TEST(Compile, CanonicalText) {
  EXPECT_EQ(to_string(causal()), "kv_idx <= q_idx");
  EXPECT_EQ(to_string(causal() & window(64)), "(kv_idx <= q_idx) & (q_idx <= kv_idx + 64)");
  const Param rel{"rel", {4, 17}};
  EXPECT_EQ(to_string(score + rel(head, clamp(kv_idx - q_idx, -8, 8) + 8)), "score + rel[head, clamp(kv_idx - q_idx, -8, 8) + 8]");
  EXPECT_EQ(to_string(softcap(30)), "30.0 * tanh(score / 30.0)");
  EXPECT_EQ(to_string(alibi(8)), "score + exp2(-head - 1) * (kv_idx - q_idx)");
}

TEST(Compile, ReductionsFollowTheIndices) {
  const Param b{"b", {64}}, t{"t", {4, 64, 64}};
  const auto reduction = [&](const Expr& score_mod, const Param& param) { return trained(score_mod, {param}).reads.at(0).reduction; };
  EXPECT_EQ(reduction(score * b(head), b), Reduction::uniform);
  EXPECT_EQ(reduction(score * b(q_idx), b), Reduction::row);
  EXPECT_EQ(reduction(score + b(kv_idx), b), Reduction::column);
  EXPECT_EQ(reduction(score + b(clamp(abs(kv_idx - q_idx), 0, 63)), b), Reduction::diagonal);
  EXPECT_EQ(reduction(score + t(head, kv_idx + 1, q_idx), t), Reduction::element);
  EXPECT_EQ(reduction(score + b(q_idx + kv_idx), b), Reduction::scatter);
}

TEST(Compile, TwoReadsOfOneParameter) {
  const Param b{"b", {64}};
  const ScoreProgram program = trained(score + b(q_idx) + b(kv_idx), {b});
  ASSERT_EQ(program.reads.size(), 1u);  // b[q_idx] is the same for a whole row: nothing reaches it
  EXPECT_EQ(program.reads[0].reduction, Reduction::column);
  EXPECT_FALSE(program.params[0].gradient_is_zero);
}

}  // namespace
}  // namespace foveal
