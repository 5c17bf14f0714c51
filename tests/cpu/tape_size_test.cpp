// Tapes grow with their programs, not faster.
#include <gtest/gtest.h>

#include "base/check.h"
#include "cpu/tape_compile.h"
#include "problem/case_data.h"

namespace foveal::cpu {
namespace {

/// Steps of a forward tape.
std::size_t steps_of(const std::string& score) {
  const problem::CaseData data(problem::parse_line("forward f32 q20 d8 score=\"" + score + "\""));
  const problem::Problem problem = problem::make_problem(data.line().attention, data.forward_inputs(), data.forward_outputs());
  return compile_forward({.score = problem.score.get()}, false).steps.size();
}

TEST(TapeSize, AFactorIsNotRepeatedForEveryUseOfAValue) {
  std::string text = "_0 = score; ";
  constexpr std::size_t levels = 60;  // pushed into both branches of each, the factors would be 2^60
  for (std::size_t i = 1; i <= levels; ++i)
    text += base::join("_", i, " = where(kv_idx == ", i, ", _", i - 1, " * 2.0, _", i - 1, " + ", i, ".5); ");
  EXPECT_LT(steps_of(text + base::join("_", levels)), levels * 80);
}

TEST(TapeSize, OfALongSumIsLinear) {
  std::string text = "score + to_real(0";
  constexpr std::size_t terms = 400;
  for (std::size_t i = 2; i <= terms; ++i) text += base::join(" + q_idx // ", i);
  EXPECT_LT(steps_of(text + ")"), terms * 4);
}

}  // namespace
}  // namespace foveal::cpu
