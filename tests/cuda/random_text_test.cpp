// The text of random programs is CUDA that the compiler accepts, in the kernels of both passes, with every kind of value that they hoist. Its
// syntax alone is checked: a thousand times faster than compiling.
#include <string>

#include "cuda/jit/source.h"
#include "cuda/kernels_of.h"
#include "foveal/error.h"
#include "nvrtc_here.h"
#include "problem/line_problem.h"
#include "random_program.h"

namespace foveal::cuda {
namespace {

class RandomText : public test::NeedsNvrtc {};

/// What the compiler says about the syntax of the kernels of a line; counts them.
std::string complaints(const problem::Line& line, int& kernels) {
  std::string log;
  for (const char* arch : {"sm_80", "sm_90a"}) {
    for (const jit::KernelSource& source : kernels_of(problem::problem_of(line, {DeviceKind::cuda, 0}), arch, "")) {
      const jit::Compilation compilation = jit::nvrtc_compile(jit::assemble(source), source.stem,
                                                              {std::string("--gpu-architecture=") + arch, "--std=c++20", "-default-device",
                                                               "--fdevice-syntax-only", "--diag-suppress=177,550", "--diag-error=117,940"},
                                                              true);
      if (!compilation.ok) log += source.stem + " for " + arch + ": " + compilation.log;
      ++kernels;
    }
  }
  return log;
}

/// Other lines: --gtest_random_seed=N.
TEST_F(RandomText, IsAcceptedByTheCompiler) {
  int lines = 0, kernels = 0;
  for (auto seed = 1000 * static_cast<unsigned>(testing::UnitTest::GetInstance()->random_seed()); lines < 24; ++seed) {
    const problem::Line line = test::random_program(seed);
    std::string log;
    try {
      log = complaints(line, kernels);
    } catch (const Error& refused) {
      ASSERT_TRUE(refused.code() == ErrorCode::invalid_argument || refused.code() == ErrorCode::unsupported) << refused.what();
      continue;  // a mask that reads the score, an index that is outside at every pair
    }
    ASSERT_EQ(log, "") << problem::to_string(line);
    ++lines;
  }
  EXPECT_GT(kernels, 4 * lines);
}

TEST_F(RandomText, NamesNoValueThatItDoesNotCompute) {
  int kernels = 0;
  // All of the score is given, as the value of a diagonal, and it is a product with a uniform factor.
  const std::string line =
      "forward bf16 b1 h4:2 q177:21 d128 score=\"where(kv_idx <= q_idx, t[head], u[]) * exp(u[])\" param=\"t: real[4]\" param=\"u: "
      "real[]\"";
  EXPECT_EQ(complaints(problem::parse_line(line), kernels), "");
}

}  // namespace
}  // namespace foveal::cuda
