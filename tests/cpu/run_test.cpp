// What a CPU plan promises about its runs: no allocation, and a checked run finds indices that leave their parameter.
#include <gtest/gtest.h>

#include <cstdlib>

#include "counted_allocations.h"
#include "foveal/foveal.h"
#include "problem/case_data.h"

namespace foveal {
namespace {

struct Aligned {
  explicit Aligned(std::size_t bytes) : data(std::aligned_alloc(256, (bytes + 256) / 256 * 256)) {}
  ~Aligned() { std::free(data); }
  void* data;
};

/// Allocations of one run on ready views and workspace, inside the executable: the public call copies its argument lists before.
template <class Inputs, class Outputs>
long allocations_of(const Plan& plan, const Inputs& inputs, const Outputs& outputs) {
  const Aligned workspace(plan.workspace_bytes());
  plan.run(inputs, outputs, workspace.data);  // threads start with the first
  const long before = allocations;
  plan.run(inputs, outputs, workspace.data);
  return allocations - before;
}

#if defined(_OPENMP)
constexpr int threads = 2;
#else
constexpr int threads = 1;  // more are started, and so allocated, by each run
#endif

TEST(CpuRun, AllocatesNothingThatGrowsWithTheProblem) {
  const auto forward_and_backward = [](const char* text) {
    const problem::Line line = problem::parse_line(text);
    problem::CaseData data(line);
    const PlanOptions options{.backend = "cpu", .threads = threads};
    const Plan there = plan(line.attention, data.forward_inputs(), data.forward_outputs(), options);
    const Plan back = plan(line.attention, data.backward_inputs(), data.backward_outputs(), options);
    return std::pair(allocations_of(there, data.forward_inputs(), data.forward_outputs()),
                     allocations_of(back, data.backward_inputs(), data.backward_outputs()));
  };
  const auto small =
      forward_and_backward("backward f32 b1 h2 q70 d16 mask=causal() score=\"score + t[kv_idx % 4]\" param=\"t: real[4] grad\"");
  const auto large =
      forward_and_backward("backward f32 b2 h4 q900 d16 mask=causal() score=\"score + t[kv_idx % 4]\" param=\"t: real[4] grad\"");
  EXPECT_EQ(small, large);
  EXPECT_LE(large.first, 8);  // the lists of views that describe the call
  EXPECT_LE(large.second, 8);
}

TEST(CpuRun, CheckedRunsNameTheIndexThatLeavesItsParameter) {
  const problem::Line line = problem::parse_line(
      "forward f32 b1 h2 q40 d16 checked score=\"score + t[where(kv_idx == 33, n[0], 0)]\" param=\"t: real[5]\" param=\"n: integer[1] "
      "constant(7)\"");
  problem::CaseData data(line);
  try {
    forward(line.attention, data.forward_inputs(), data.forward_outputs(), {}, {.backend = "cpu"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("t"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("7"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace foveal
