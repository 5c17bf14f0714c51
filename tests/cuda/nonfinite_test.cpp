// Infinity and NaN in keys and values reach the pairs that the mask keeps, and no others, in tiles that a mask cuts, as far as the Hopper kernels promise it. The
// reference says which elements they reach; the others are judged by the tolerance rule as always. A backward pass is given out and lse of the reference. Skipped
// where there is no device.
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "check/check.h"
#include "check/device_case.h"
#include "check/run.h"
#include "cuda/jit/driver.h"
#include "nvrtc_here.h"
#include "on_gpu.h"
#include "poison.h"
#include "problem/line_problem.h"

namespace foveal::cuda {
namespace {

using test::Poison;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
const std::string padding = " param=\"n: integer[1] constant(170)\"";

/// Values that some queries of a tile keep and others do not are promised for backward passes alone (docs/numerics.md); queries, for lse and out.
enum class Passes { both, forward, backward };

struct Case {
  std::vector<std::string> problems;  ///< without the pass
  std::vector<Poison> poisons;
  Passes passes = Passes::both;
};

std::vector<std::string> with_dims(const std::string& rest) {
  std::vector<std::string> problems;
  for (const char* start : {"bf16 h2 d64 ", "f16 h4:2 d128 ", "bf16 h2 d256 ", "f16 h2 d192:128 "}) problems.push_back(start + rest);
  return problems;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      // Kept by some queries of a tile and not by others; all elements of a row, and some.
      {with_dims("q300 mask=\"causal()\""), {{"k", 41, nan, false}, {"k", 299, -infinity, true}}},
      {with_dims("q300 mask=\"causal()\""),
       {{"v", 40, nan, true}, {"v", 140, infinity, false}, {"v", 250, -infinity, true, 3}},
       Passes::backward},
      {with_dims("q300 mask=\"causal()\""), {{"q", 77, nan, false}, {"q", 130, nan, true}}, Passes::forward},
      // By nobody: everyday padding.
      {with_dims("q300 mask=\"kv_idx < n[batch]\"" + padding), {{"k", 170, nan, true, 130}, {"v", 170, nan, true, 130}}},
      // Of the sequence that follows in one tile.
      {with_dims("q200 lengths=100,37,163"), {{"k", 100, nan, true, 37}, {"v", 100, infinity, true, 37}}},
      {with_dims("q200 lengths=100,37,163 mask=\"kv_idx <= q_idx\""), {{"k", 100, nan, true, 37}, {"v", 100, nan, true, 37}}},
      {with_dims("q300 mask=\"doc[q_idx] == doc[kv_idx]\" param=\"doc: integer[300] segments(4)\""),
       {{"k", 20, nan, true}, {"k", 222, infinity, false}}},
      {with_dims("q300 mask=\"doc[q_idx] == doc[kv_idx]\" param=\"doc: integer[300] segments(4)\""),
       {{"v", 100, nan, true, 2}},
       Passes::backward},
      {{"bf16 b1 h2 q300 d128 mask=\"(kv_idx <= q_idx) & (q_idx - kv_idx < 20)\"",
        "bf16 b1 h2 q600 d64 mask=\"(kv_idx <= q_idx) & (q_idx - kv_idx < 200)\" determinism=reproducible",
        "f16 b1 h2 q300 d80 mask=\"(kv_idx <= q_idx) & (q_idx - kv_idx < 20)\"",
        "bf16 b1 h2 q301:333 d256:200 mask=\"abs(q_idx - kv_idx) < 33\""},
       {{"k", 3, infinity, false}, {"k", 130, nan, true}}},
      {{"bf16 b1 h2 q300 d128 mask=\"(kv_idx < 40) | (kv_idx <= q_idx)\"", "f16 b1 h2 q300 d96 mask=\"(q_idx + kv_idx) % 3 != 0\""},
       {{"v", 11, nan, false}, {"k", 50, nan, true}, {"v", 250, infinity, true}},
       Passes::backward},
      // Scores by programs, and gradients of what they read.
      {{"bf16 b1 h2 q300 d128 mask=\"kv_idx <= q_idx\" score=\"3 * tanh(score)\"",
        "f16 b1 h2 q300 d64 mask=\"kv_idx <= q_idx\" score=\"3 * tanh(score)\"",
        "bf16 b1 h2 q300 d256 mask=\"kv_idx <= q_idx\" score=\"3 * tanh(score)\""},
       {{"k", 30, infinity, false}}},
      {{"bf16 b1 h2 q300 d64 mask=\"kv_idx < n[batch]\" score=\"score * t[head] + u[clamp(q_idx - kv_idx, -9, 9) + 9]\" param=\"t: real[2] "
        "grad\" "
        "param=\"u: real[19] grad\"" +
            padding,
        "bf16 b1 h2 q300 d192 mask=\"kv_idx < n[batch]\" score=\"score * t[head]\" param=\"t: real[2] grad\"" + padding,
        "bf16 b1 h2 q300 d128 mask=\"kv_idx < n[batch]\" score=\"score + t[q_idx, kv_idx]\" param=\"t: real[300, 300] grad\"" + padding},
       {{"k", 170, nan, true, 130}, {"v", 170, nan, true, 130}}},
      {{"bf16 b1 h2 q300 d64 mask=\"causal()\" sink=s param=\"s: real[2] grad\""},
       {{"k", 299, nan, true}, {"v", 290, nan, true}},
       Passes::backward},
      // Few queries: heads of a group in one tile, parts of the keys.
      {{"bf16 b1 h8:2 q2:3000 d64 mask=\"kv_idx < 2501 + q_idx\"", "f16 b1 h8:2 q1:3000 d128 mask=\"kv_idx < 2501 + q_idx\"",
        "bf16 b1 h8:2 q3:3000 d256 mask=\"kv_idx < 2499 + q_idx\"", "f16 b1 h8:2 q2:3000 d128"},
       {{"q", 0, nan, true}, {"k", 2510, nan, true, 490}},
       Passes::forward},
  };
  return all;
}

struct Job {
  std::string line;
  const Case* of;
};

std::vector<Job> jobs() {
  std::vector<Job> all;
  for (const Case& c : cases())
    for (const std::string& problem : c.problems) {
      if (c.passes != Passes::backward) all.push_back({"forward " + problem, &c});
      if (c.passes != Passes::forward) all.push_back({"backward " + problem, &c});
    }
  return all;
}

std::string failure_of(const Job& run) {
  const problem::Line line = test::on_gpu(problem::parse_line(run.line));
  problem::CaseData data(line);
  for (const Poison& p : run.of->poisons)
    if (data.view(p.role).present()) poison(data, p);
  const check::Report report =
      check::Checker(std::move(data))
          .judge(
              [&](problem::CaseData& judged) {
                if (line.pass == Pass::forward) return check::run_case(judged, line.options);
                forward(line.attention, judged.forward_inputs(), judged.forward_outputs(), {}, {.backend = "reference"});
                check::DeviceCase device(judged);
                const Plan plan = foveal::plan(line.attention, device.backward_inputs(), device.backward_outputs(), line.options);
                backward(line.attention, device.backward_inputs(), device.backward_outputs(), {}, line.options);
                device.download();
                return plan.kernel();
              },
              line.options);
  if (report.kernel.find("sm90") == std::string::npos) return base::join(run.line, ": by ", report.kernel, " ", report.failure);
  return report.pass ? "" : base::join(run.line, ": ", report.failure);
}

class GpuNonfinite : public test::NeedsNvrtc {
 protected:
  void SetUp() override {
    NeedsNvrtc::SetUp();
    if (IsSkipped()) return;
    if (driver::device_count() == 0) GTEST_SKIP() << "no device: " << driver::unavailable();
    if (driver::device_facts(0).capability() != 90) GTEST_SKIP() << "no Hopper";
  }
};

/// Where no device runs them, too, so that they stay what the parser takes.
TEST(Nonfinite, CasesAreProblemLines) {
  for (const Job& job : jobs()) EXPECT_NO_THROW(problem::parse_line(job.line)) << job.line;
}

TEST_F(GpuNonfinite, StaysWithThePairsThatAreKept) {
  const std::vector<Job> runs = jobs();
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {  // most of the time kernels are compiled
    threads.emplace_back([&] {
      for (std::size_t i; (i = next++) < runs.size();) {
        const std::string failure = failure_of(runs[i]);
        const std::lock_guard lock(mutex);
        EXPECT_EQ(failure, "");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace foveal::cuda
