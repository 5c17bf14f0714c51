// The same call gives the same bits: again, with other threads, beside other calls.
#include <atomic>
#include <thread>

#include "laws.h"

namespace foveal::laws {
namespace {

class Repeat : public Laws {};
FOVEAL_LAWS(Repeat);

const std::vector<std::string>& problems() {
  static const std::vector<std::string> lines{
      "forward f32 b2 h4:2 q100:130 d64 mask=\"causal()\"", "backward f32 b2 h4:2 q100:130 d64 mask=\"causal()\" determinism=reproducible",
      "backward bf16 b1 h4 q150 d64 determinism=reproducible strategy=fused",
      "backward bf16 b1 h4 q150 d64 determinism=reproducible strategy=split",
      "backward f32 b2 h2 q90 d32 score=\"score + t[i[q_idx]] * t[i[kv_idx]] + rel[head, clamp(kv_idx - q_idx, -9, 9) + 9]\" param=\"t: "
      "real[5] grad\" "
      "param=\"i: integer[90] integers(0, 4)\" param=\"rel: real[2, 19] grad\" determinism=reproducible",
      // Heads add to the same elements; shares of a head to different ones.
      "backward f32 b1 h4 q256 d16 score=\"score * (1 + b[head, kv_idx % 4]) + b[kv_idx % 4, head]\" param=\"b: real[4, 4] grad\" "
      "determinism=reproducible",
      "backward f32 b1 h4:2 q300 d32 score=\"score + b[head, q_idx, kv_idx // 3] * b[head, q_idx, 7]\" param=\"b: real[4, 300, 100] grad\" "
      "determinism=reproducible",
      "backward f32 b1 h2 q64 d32 sink=s param=\"s: real[2] grad\" dropout=0.2:9 dlse determinism=reproducible"};
  return lines;
}

TEST_P(Repeat, TwentyRunsGiveTheSameBits) {
  for (const std::string& text : problems()) {
    CaseData data = make(text);
    if (!run(data, 2)) continue;
    const auto expected = bits_of_results(data);
    for (int i = 1; i < 20; ++i) {
      data.clear_outputs(data.line().pass);
      run(data, 2);
      ASSERT_EQ(bits_of_results(data), expected) << text << " run " << i;
    }
  }
}

TEST_P(Repeat, TheNumberOfThreadsChangesNothing) {
  for (const std::string& text : problems()) {
    CaseData data = make(text);
    if (!run(data, 1)) continue;
    const auto expected = bits_of_results(data);
    for (const int threads : {2, 3, 5}) {
      data.clear_outputs(data.line().pass);
      run(data, threads);
      ASSERT_EQ(bits_of_results(data), expected) << text << " threads " << threads;
    }
  }
}

TEST_P(Repeat, OnePlanRunsFromManyThreads) {
  if (GetParam().backend == "cuda") GTEST_SKIP() << "runs through tensors of the host";
  const std::string text = "forward f32 b1 h2 q120 d32 mask=\"causal()\"";
  CaseData expected = make(text);
  RUN_OR_SKIP(expected);
  const Plan plan = foveal::plan(expected.line().attention, expected.forward_inputs(), expected.forward_outputs(), options());
  std::atomic<int> equal{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      CaseData own = make(text);
      std::vector<char> memory(plan.workspace_bytes() + 256);
      void* workspace = memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256) % 256;
      for (int i = 0; i < 5; ++i) {
        plan.run(own.forward_inputs(), own.forward_outputs(), workspace);
        equal += bits_of_results(own) == bits_of_results(expected);
        own.clear_outputs(Pass::forward);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, 20);
}

TEST_P(Repeat, AnExecutorOfTheCallerDoesTheWork) {
  if (GetParam().backend == "cuda") GTEST_SKIP() << "no CPU work to hand out";
  const std::string text = "backward f32 b2 h4 q100 d32 mask=\"causal()\"";
  CaseData expected = make(text), data = make(text);
  RUN_OR_SKIP(expected);
  std::int64_t seen = 0;
  PlanOptions own = options();
  own.executor = std::make_shared<Executor>(
      Executor{.concurrency = 3, .run = [&seen](std::int64_t tasks, const std::function<void(std::int64_t, int)>& fn) {
                 for (std::int64_t task = tasks; task-- > 0;) fn(task, static_cast<int>(task % 3));  // backwards
                 seen += tasks;
               }});
  check::run_case(data, own);
  EXPECT_GT(seen, 0);
  EXPECT_EQ(bits_of_results(data), bits_of_results(expected));
}

}  // namespace
}  // namespace foveal::laws
