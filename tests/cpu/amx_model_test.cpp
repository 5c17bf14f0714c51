// The AMX schedule through complete forward and backward passes, on the scalar model of its tiles, judged by the tolerance rule like every
// kernel.
#include "amx_model.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "base/check.h"
#include "check/check.h"
#include "cpu/backward.h"
#include "cpu/forward.h"

namespace foveal::cpu {
namespace {

const Target model{.name = "amx", .available = true, .detail = "scalar tiles"};

/// Prepares a pass on the model's table and runs it; gives the kernel's name.
template <class Inputs, class Outputs, class Make>
std::string run_pass(const Attention& attention, const Inputs& inputs, const Outputs& outputs, const Make& make) {
  const problem::Problem problem = problem::make_problem(attention, inputs, outputs);
  const std::unique_ptr<planning::Executable> executable = make(problem, model, amx_model, PlanOptions{.threads = 1});
  const std::unique_ptr<void, void (*)(void*)> workspace(std::aligned_alloc(256, (executable->workspace_bytes() + 255) / 256 * 256),
                                                         std::free);
  problem::Buffers buffers;
  problem::fill_buffers(problem, inputs, outputs, buffers);
  executable->run(buffers, workspace.get(), {});
  return executable->kernel();
}

std::string run_model(problem::CaseData& data) {
  const Attention& attention = data.line().attention;
  std::string kernel = run_pass(attention, data.forward_inputs(), data.forward_outputs(), make_forward<float>);
  if (data.line().pass == Pass::backward)
    kernel = run_pass(attention, data.backward_inputs(), data.backward_outputs(), make_backward<float>);
  return kernel;
}

struct Shape {
  const char* name;
  const char* text;
};

const Shape shapes[] = {
    {"one", "b1 h1 q1:1 d1"},
    {"tails", "b2 h3 q67:131 d33:17"},
    {"blocks", "b1 h2 q128:256 d64"},
    {"causal", "b1 h2 q200:200 d64 mask=\"kv_idx <= q_idx\""},
    {"window", "b1 h2 q150:300 d32 mask=\"kv_idx <= q_idx + 150 and q_idx - kv_idx < 40\""},
    {"gqa", "b1 h6:2 q11:140 d48:80"},
    {"varlen", "b3 h2 q90:160 d32 lengths=90:70,1:160,37:5"},
    {"score", "b1 h2 q70:140 d64 score=\"30 * tanh(score / 30) + 0.1 * (kv_idx - q_idx)\""},
    {"table", "b1 h2 q70:140 d32 score=\"score + rel[head, clamp(kv_idx - q_idx, -8, 8) + 8]\" param=\"rel: real[2, 17] grad\""},
    {"dropout", "b1 h2 q70:140 d32 dropout=0.2"},
    {"adversarial", "b1 h2 q100:200 d64 inputs=adversarial"},
};

class AmxModel : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "the vector half of the AMX target needs AVX-512-BF16";
  }
  static void expect_right(const std::string& line, const std::string& kernel) {
    const check::Report report = check::Checker(problem::parse_line(line)).judge(run_model);
    EXPECT_TRUE(report.pass) << line << ": " << report.failure;
    EXPECT_EQ(report.kernel, kernel);
  }
};

TEST_P(AmxModel, ForwardIsExact) { expect_right(base::join("forward bf16 ", GetParam().text), "cpu.amx_model.bf16.forward"); }

TEST_P(AmxModel, BackwardIsExact) {
  for (const char* strategy : {"fused", "split"}) {
    expect_right(base::join("backward bf16 ", GetParam().text, " dlse strategy=", strategy),
                 base::join("cpu.amx_model.bf16.backward.", strategy));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AmxModel, testing::ValuesIn(shapes), [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foveal::cpu
