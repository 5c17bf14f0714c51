// Among how many tasks the query heads of a kv head are split in the backward pass, and what follows for its launches.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/kernels_of.h"
#include "cuda/nvrtc_here.h"
#include "cuda/tune/read_plan.h"
#include "cuda/tune/sm90_backward_schedule.h"
#include "problem/line.h"
#include "problem/line_problem.h"

namespace foveal::cuda {
namespace {

problem::Problem problem_of(const std::string& line) { return problem::problem_of(problem::parse_line(line), {DeviceKind::cuda, 0}); }

int tasks_of(const std::string& line) {
  const driver::DeviceFacts h200{.name = "NVIDIA H200", .major = 9, .minor = 0, .multiprocessors = 132, .l2_bytes = 60 << 20};
  const problem::Problem p = problem_of("backward bf16 " + line);
  return sm90_group_tasks(p, sm90_backward_candidates(p, sm90_read_plan(p)).front(), h200);
}

/// What was the fastest on an H200, or within 3 % of it.
TEST(GroupTasks, AreThoseThatWereFastest) {
  const std::string causal = " mask=\"causal()\"";
  EXPECT_EQ(tasks_of("h8:1 q4096 d128" + causal), 8);  // 5.7 times as fast as one task
  EXPECT_EQ(tasks_of("h28:4 q4096 d128" + causal), 7);
  EXPECT_EQ(tasks_of("h28:4 q8192 d128" + causal), 7);
  EXPECT_EQ(tasks_of("h64:8 q8192 d128" + causal), 8);
  EXPECT_EQ(tasks_of("h32:8 q16384 d128" + causal), 4);
  EXPECT_EQ(tasks_of("h32:8 q32768 d128 mask=\"causal() & window(4096)\""), 4);
  EXPECT_EQ(tasks_of("h32:8 q4096 d128" + causal), 1);
  EXPECT_EQ(tasks_of("b4 h32:8 q2048 d128" + causal), 1);
  EXPECT_EQ(tasks_of("h32:8 q4096 d64" + causal), 1);
  EXPECT_EQ(tasks_of("h16:4 q4096 d256" + causal), 1);
  EXPECT_GT(tasks_of("h8:1 q8192 d256" + causal), 1);  // 2, 4 and 8 are within 1 % of each other
  EXPECT_EQ(tasks_of("h32:8 q8192 d128"), 1);          // full masks: tasks walk in step
  EXPECT_GT(tasks_of("h8:1 q4096 d128"), 1);           // but few leave multiprocessors idle
  EXPECT_EQ(tasks_of("h16 q4096 d128" + causal), 1);
}

TEST(GroupTasks, OfReproducibleResultsAreOne) {
  EXPECT_EQ(tasks_of("h8:1 q4096 d128 mask=\"causal()\" determinism=reproducible"), 1);
  EXPECT_FALSE(sm90_splits_groups(problem_of("backward bf16 h8:1 q4096 d128 mask=\"causal()\" determinism=reproducible")));
}

TEST(GroupTasks, WhatCannotBeSplitIsIllegal) {
  const problem::Problem p = problem_of("backward bf16 h6:2 q4096 d128 mask=\"causal()\"");
  const ReadPlan plan = sm90_read_plan(p);
  Sm90BackwardConfig config = sm90_backward_candidates(p, plan).front();
  for (const int tasks : {0, 1, 3}) {
    config.group_tasks = tasks;
    EXPECT_FALSE(sm90_illegal(p, plan, config)) << tasks;
  }
  for (const int tasks : {-1, 2, 6}) {
    config.group_tasks = tasks;
    EXPECT_EQ(sm90_illegal(p, plan, config), "the 3 query heads of a kv head cannot be split among " + std::to_string(tasks) + " tasks");
  }
}

/// Sums of dk and dv in the workspace, and a kernel for each that writes them.
TEST(GroupTasks, BringSumsWithThem) {
  const auto sums_of = [](const std::vector<jit::KernelSource>& sources) {
    return std::count_if(sources.begin(), sources.end(), [](const jit::KernelSource& s) { return s.stem == "group_sums_sm90"; });
  };
  const auto made = [](const char* line) { return executable_of(problem_of(line), "sm_90a", ""); };
  const auto split = made("backward bf16 h8:1 q1000 d128 mask=\"causal()\""),
             whole = made("backward bf16 h8:8 q1000 d128 mask=\"causal()\"");
  EXPECT_EQ(sums_of(split->sources()), 2);
  EXPECT_EQ(sums_of(whole->sources()), 0);
  EXPECT_EQ(split->workspace_bytes() - whole->workspace_bytes(), 2u * 1024 * 128 * sizeof(float));  // 1000 keys in tasks of 128
  const auto packed = made("backward bf16 d64 h8:1 lengths=1000,500 mask=\"causal()\"");
  EXPECT_EQ(sums_of(packed->sources()), 2);
}

class GroupTaskKernels : public foveal::test::NeedsNvrtc {};

TEST_F(GroupTaskKernels, SpillNoMoreThanWithoutGroups) {
  for (const int head_dim : {64, 128, 256}) {
    const auto spilled = [&](const std::string& heads) {
      const auto sources =
          executable_of(problem_of("backward bf16 " + heads + " q4096 d" + std::to_string(head_dim) + " mask=\"causal()\""), "sm_90a", "")
              ->sources();
      return jit::compile(sources.front())->facts.spill_bytes;
    };
    EXPECT_LE(spilled("h8:1"), spilled("h8:8")) << head_dim;
  }
}

}  // namespace
}  // namespace foveal::cuda
