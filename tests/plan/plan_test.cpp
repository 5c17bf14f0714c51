#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "api/backends.h"
#include "counted_allocations.h"
#include "plan/choose.h"
#include "plan/signature.h"
#include "problem/case_data.h"

namespace foveal::planning {
namespace {

using problem::CaseData;
using problem::parse_line;

/// A backend that says what it is told to.
class Scripted : public Backend {
 public:
  Scripted(std::string name, std::optional<std::string> refusal, DeviceKind kind = DeviceKind::cpu)
      : name_(std::move(name)), refusal_(std::move(refusal)), kind_(kind) {}
  std::string name() const override { return name_; }
  DeviceKind device_kind() const override { return kind_; }
  std::vector<TargetInfo> targets() const override { return {{name_, name_ + "_target", true, ""}}; }
  Answer prepare(const problem::Problem&, const PlanOptions&) const override {
    class Nothing : public Executable {
      std::size_t workspace_bytes() const override { return 64; }
      void describe(Explanation& explanation) const override { explanation.details = {{"fact", "told"}}; }
      std::string kernel() const override { return "nothing"; }
      void run(const problem::Buffers&, void*, Stream) const override {}
    };
    if (refusal_) return {.refusal = *refusal_};
    return {.executable = std::make_unique<Nothing>()};
  }

 private:
  std::string name_;
  std::optional<std::string> refusal_;
  DeviceKind kind_;
};

const Backends& scripted() {
  static const Backends all = [] {
    Backends list;
    list.push_back(std::make_unique<Scripted>("first", "head_dim 600 exceeds 512"));
    list.push_back(std::make_unique<Scripted>("gpu", std::nullopt, DeviceKind::cuda));
    list.push_back(std::make_unique<Scripted>("second", std::nullopt));
    list.push_back(std::make_unique<Scripted>("third", std::nullopt));
    return list;
  }();
  return all;
}

problem::Problem some_problem() {
  const CaseData data(parse_line("forward f32 b1 h1 q4 d8"));
  return problem::make_problem({}, data.forward_inputs(), data.forward_outputs());
}

TEST(Choose, TheFirstThatCanWinsAndRefusalsAreKept) {
  const auto state = choose(some_problem(), {}, scripted());
  EXPECT_EQ(state->backend->name(), "second");
  ASSERT_EQ(state->refusals.size(), 2u);
  EXPECT_EQ(state->refusals[0].reason, "head_dim 600 exceeds 512");
  EXPECT_EQ(state->refusals[1].reason, "the tensors are on the CPU");
  EXPECT_EQ(state->workspace_bytes, 64u);
}

TEST(Choose, AsksOnlyTheOneNamed) {
  EXPECT_EQ(choose(some_problem(), {.backend = "third"}, scripted())->backend->name(), "third");
  EXPECT_EQ(choose(some_problem(), {.target = "third_target"}, scripted())->backend->name(), "third");
}

TEST(Choose, ListsEveryReasonWhenNoneCan) {
  try {
    choose(some_problem(), {.backend = "first"}, scripted());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    const std::string text = error.what();
    EXPECT_NE(text.find("[forward f32 b1 h1 q4 d8]"), std::string::npos) << text;
    EXPECT_NE(text.find("first: head_dim 600 exceeds 512"), std::string::npos) << text;
    EXPECT_NE(text.find("second: another backend was asked for by name"), std::string::npos) << text;
  }
}

std::string signature_of(const CaseData& data, const Attention& attention, const PlanOptions& options = {}) {
  const ForwardInputs inputs = data.forward_inputs();
  const ForwardOutputs outputs = data.forward_outputs();
  std::string signature;
  write_signature(attention, problem::call_of(inputs, outputs), options, signature);
  return signature;
}

TEST(Signature, DiffersWhereThePlanMay) {
  const CaseData data(parse_line("forward f32 b2 h4 q8 d16")), other_layout(parse_line("forward f32 b2 h4 q8 d16 layout=bhsd"));
  Attention attention{.mask = causal()};
  const std::string plain = signature_of(data, attention);
  EXPECT_EQ(plain, signature_of(data, attention));
  EXPECT_NE(plain, signature_of(other_layout, attention));
  EXPECT_NE(plain, signature_of(data, {.mask = window(3)}));
  EXPECT_NE(plain, signature_of(data, attention, {.backend = "reference"}));
  EXPECT_NE(plain, signature_of(data, attention, {.threads = 7}));
  Attention scaled = attention;
  scaled.scale = 0.5;
  EXPECT_NE(plain, signature_of(data, scaled));
  Attention dropping = attention;
  dropping.dropout_p = 0.1;
  EXPECT_NE(plain, signature_of(data, dropping));
}

TEST(Signature, SeedsAreNoPartOfIt) {
  const auto of = [](const std::string& dropout) {
    const CaseData data(parse_line("forward f32 b2 h4 q8 d16 dropout=0.1" + dropout));
    const Attention& attention = data.line().attention;
    return std::pair{signature_of(data, attention),
                     problem::key_of(problem::make_problem(attention, data.forward_inputs(), data.forward_outputs()))};
  };
  const auto plain = of("");
  for (const char* dropout : {":1", ":1:2", ":18446744073709551615:3", ":5:6:memory"}) EXPECT_EQ(plain, of(dropout)) << dropout;
}

TEST(Problem, TheKeySaysMoreThanTheLine) {
  const auto key = [](const char* line) {
    const CaseData data(parse_line(line));
    return problem::key_of(problem::make_problem(data.line().attention, data.forward_inputs(), data.forward_outputs()));
  };
  EXPECT_EQ(key("forward f32 b2 h4 q8 d16"), key("forward f32 b2 h4 q8 d16 seed=9"));
  EXPECT_NE(key("forward f32 b2 h4 q8 d16"), key("forward f32 b2 h4 q8 d16 layout=padded"));
  EXPECT_NE(key("forward f32 b2 h4 q8 d16"), key("forward f32 b2 h4 q8 d16 no_lse"));
}

TEST(Problem, LengthsCompileNoScoreAnew) {
  const auto score = [&](std::int64_t keys, const Attention& attention, bool backward = false) {
    const std::string line = std::string(backward ? "backward" : "forward") + " f32 b1 h4 q1:" + std::to_string(keys) + " d16";
    const CaseData data(parse_line(line));
    return backward ? problem::make_problem(attention, data.backward_inputs(), data.backward_outputs()).score
                    : problem::make_problem(attention, data.forward_inputs(), data.forward_outputs()).score;
  };
  const Attention capped{.score_mod = softcap(30.0)}, other{.score_mod = softcap(20.0)},
      masked{.score_mod = capped.score_mod, .mask = causal()};
  const auto first = score(16, capped);
  EXPECT_EQ(first, score(17, capped));
  EXPECT_NE(first, score(17, other));
  EXPECT_NE(first, score(17, masked));
  EXPECT_NE(first, score(17, capped, true));
}

TEST(Problem, PlansOfGpuTensorsAreForTheirAlignment) {
  const CaseData data(parse_line("forward bf16 b2 h4 q8 d16"));
  const auto at = [&](DeviceKind kind, std::uintptr_t address) {
    const auto on = [&](TensorView view, std::uintptr_t where) {
      view.device.kind = kind, view.data = reinterpret_cast<void*>(where);
      return view;
    };
    ForwardInputs inputs = data.forward_inputs();
    ForwardOutputs outputs = data.forward_outputs();
    inputs.q = on(inputs.q, address), inputs.k = on(inputs.k, 4096), inputs.v = on(inputs.v, 4096);
    outputs.out = on(outputs.out, 4096), outputs.lse = on(outputs.lse, 4096);
    std::string signature;
    write_signature({}, problem::call_of(inputs, outputs), {}, signature);
    return std::pair{signature, problem::key_of(problem::make_problem({}, inputs, outputs))};
  };
  const auto aligned = at(DeviceKind::cuda, 4096), same = at(DeviceKind::cuda, 4112), not_aligned = at(DeviceKind::cuda, 4098);
  EXPECT_EQ(aligned, same);
  EXPECT_NE(aligned.first, not_aligned.first);
  EXPECT_NE(aligned.second, not_aligned.second);
  EXPECT_EQ(at(DeviceKind::cpu, 4096), at(DeviceKind::cpu, 4098));
}

TEST(Plan, RunAllocatesNothing) {
  for (const TargetInfo& target : targets()) {
    if (!target.available || target.backend == "cuda") continue;
    for (const char* line :
         {"forward f32 b2 h4:2 q70 d32 mask=\"causal()\"",
          "backward f32 b2 h4:2 q70 d32 score=\"score + rel[head, clamp(kv_idx - q_idx, -3, 3) + 3]\" "
          "param=\"rel: real[4, 7] grad\"",
          "backward bf16 b1 h4 q50 d32 mask=\"causal()\" sink=s param=\"s: real[4] grad\"",
          // What is visited depends on the data: lengths, or parameters that the mask reads.
          "forward f32 h4:2 d32 lengths=70,3,0,200:50 mask=\"causal()\"",
          "backward f32 h4:2 d16 lengths=70,3,200:50 mask=\"causal()\" score=\"score + b[head]\" param=\"b: real[4] grad\"",
          "backward bf16 h2 d16 lengths=70,0:8,200:150 cu=i64 strategy=split",
          "forward f32 b2 h2 q300 d16 mask=\"document(doc) & causal()\" param=\"doc: integer[2, 300] segments(6)\"",
          "backward f32 b2 h4:2 q300 d16 mask=\"keep[head, q_idx // 20, kv_idx // 20]\" "
          "param=\"keep: boolean[4, 15, 15] bernoulli(0.3)\" strategy=two_scan"}) {
      CaseData data(parse_line(line));
      const PlanOptions options{.backend = target.backend, .target = target.target, .threads = 1};
      const Attention& attention = data.line().attention;
      const ForwardInputs forward_inputs = data.forward_inputs();
      const ForwardOutputs forward_outputs = data.forward_outputs();
      const BackwardInputs backward_inputs = data.backward_inputs();
      const BackwardOutputs backward_outputs = data.backward_outputs();
      const bool is_forward = data.line().pass == Pass::forward;
      Plan plan;
      try {
        plan = is_forward ? foveal::plan(attention, forward_inputs, forward_outputs, options)
                          : foveal::plan(attention, backward_inputs, backward_outputs, options);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
        continue;
      }
      void* workspace = std::aligned_alloc(256, (plan.workspace_bytes() + 511) / 256 * 256);
      const auto run = [&] {
        if (is_forward)
          plan.run(forward_inputs, forward_outputs, workspace);
        else
          plan.run(backward_inputs, backward_outputs, workspace);
      };
      if (!is_forward) forward(attention, forward_inputs, forward_outputs, {}, options);
      run();  // the first run may make what the thread keeps
      const long before = allocations;
      run();
      EXPECT_EQ(allocations, before) << plan.kernel() << " " << line;
      std::free(workspace);
    }
  }
}

TEST(Plan, ExplainsItself) {
  const Param rel("rel", {8, 5});
  using namespace symbols;
  const Attention attention{.score_mod = score + rel(head, clamp(kv_idx - q_idx, -2, 2) + 2), .mask = causal()};
  const Plan plan = foveal::plan(
      attention, Shapes{.batch = 2, .heads_q = 8, .heads_kv = 4, .seqlen_q = 256, .seqlen_kv = 256, .head_dim = 64, .head_dim_v = 64},
      Pass::backward, {}, {.backend = "reference"});
  const Explanation explanation = plan.explain();
  EXPECT_EQ(explanation.backend, "reference");
  EXPECT_EQ(explanation.kernel, "reference.f32.backward");
  EXPECT_EQ(explanation.workspace_bytes, plan.workspace_bytes());
  EXPECT_NE(explanation.problem.find("backward f32 b2 h8:4 q256 d64 mask=\"kv_idx <= q_idx\""), std::string::npos) << explanation.problem;
  EXPECT_NE(explanation.problem.find("grad"), std::string::npos) << explanation.problem;
  const std::string text = explanation.to_string();
  for (const char* part : {"problem", "kernel          reference.f32.backward", "workspace", "flops", "MFLOP", "refused"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST(Plan, FromShapesRunsOnRealTensors) {
  CaseData data(parse_line("forward f32 b2 h4:2 q9:11 d8:16 mask=\"causal()\""));
  const Plan plan = foveal::plan(
      data.line().attention,
      Shapes{.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 9, .seqlen_kv = 11, .head_dim = 8, .head_dim_v = 16}, Pass::forward);
  std::vector<char> memory(plan.workspace_bytes() + 256);
  plan.run(data.forward_inputs(), data.forward_outputs(),
           memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256) % 256);
  for (const double value : problem::values_of(data.view("out"))) EXPECT_TRUE(std::isfinite(value));
}

TEST(Targets, AreListedInTheOrderTheyAreAsked) {
  const std::vector<TargetInfo> all = targets();
  ASSERT_FALSE(all.empty());
  bool reference = false;
  for (const TargetInfo& info : all) {
    EXPECT_FALSE(info.target.empty());
    EXPECT_TRUE(info.available || !info.detail.empty()) << info.target << " must say why it is not available";
    reference = reference || (info.backend == "reference" && info.available);
  }
  EXPECT_TRUE(reference);
}

}  // namespace
}  // namespace foveal::planning
