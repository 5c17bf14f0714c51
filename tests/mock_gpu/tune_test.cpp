// Configurations as text, their tables and files, and `foveal tune` on a device whose times the test makes up.
#include <fstream>

#include "command.h"
#include "cuda/launch/forward_sm80.h"
#include "cuda/tune/read_plan.h"
#include "cuda/tune/sm90.h"
#include "cuda/tune/tuned.h"
#include "mock_driver.h"
#include "mock_plan.h"
#include "nvrtc_here.h"
#include "own_folder.h"

namespace foveal {
namespace {

using cuda::parse_config;
using cuda::Sm90ForwardConfig;
using cuda::tuned_line;

problem::Problem problem_of(const std::string& line) { return problem::problem_of(problem::parse_line(line), {DeviceKind::cuda, 0}); }

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "nothing thrown";
}

/// Details of explain() of a plan that is loaded on the mock driver.
std::string detail(const std::string& line, const std::string& arch, const std::string& name) {
  const test::MockPlan plan(problem::parse_line(line), arch);
  Explanation explanation;
  plan.executable->describe(explanation);
  for (const auto& [key, text] : explanation.details)
    if (key == name) return text;
  return "";
}

const std::vector<std::string> kinds = {
    "forward bf16 b2 h4 q4096 d64",
    "forward bf16 b2 h4 q4096 d64 mask=\"causal()\" score=\"tanh(score / 20) * 20\"",
    "forward f16 b2 h4 q4096 d64 score=\"score + t[head, q_idx, kv_idx]\" param=\"t: real[4, 4096, 4096] f16\"",
    "forward bf16 b2 h4 q4096 d96",
    "forward bf16 b2 h4 q4096 d128 mask=\"causal()\"",
    "forward bf16 b2 h4 q4096 d192:128",
    "forward bf16 b2 h4 q4096 d256 dropout=0.1",
    "forward bf16 b1 h32:8 q1:4096 d128",
    "forward bf16 b1 h32:8 q7:4096 d256",
    "forward bf16 b1 h8 q3:4096 d64",
};

TEST(Configurations, ReadBackWhatTheyPrint) {
  for (const std::string& line : kinds)
    for (const Sm90ForwardConfig& config : cuda::sm90_forward_space(problem_of(line)))
      EXPECT_EQ(text_of(parse_config<Sm90ForwardConfig>(text_of(config), "test")), text_of(config));
  const std::string text =
      "block_kv=160 consumers=2 stages=2 query_stages=2 ping_pong=1 intra_warpgroup_overlap=0 packed_heads=1 pair_stages=0";
  EXPECT_EQ(text_of(parse_config<Sm90ForwardConfig>(text, "test")), text);
  EXPECT_NE(message_of([] { parse_config<Sm90ForwardConfig>("block_kv=160 stages=2", "file:7"); }).find("file:7"), std::string::npos);
  EXPECT_NE(message_of([] { parse_config<Sm90ForwardConfig>("block_kv=x", "file:7"); }).find("block_kv=a number"), std::string::npos);
  EXPECT_NE(message_of([&] { parse_config<Sm90ForwardConfig>(text + " more=1", "file:7"); }).find("more=1"), std::string::npos);
}

TEST(Configurations, WhatTheTablesSayIsLegal) {
  for (const std::string& line : kinds) {
    const problem::Problem p = problem_of(line);
    const auto space = cuda::sm90_forward_space(p), candidates = cuda::sm90_forward_candidates(p);
    ASSERT_FALSE(candidates.empty()) << line;
    EXPECT_EQ(text_of(space.front()), text_of(candidates.front()));
    EXPECT_GE(space.size(), 4u) << line;
    for (const Sm90ForwardConfig& config : space) EXPECT_FALSE(sm90_illegal(p, config)) << line << ": " << text_of(config);
    const problem::Problem back = problem_of("backward" + line.substr(7));
    const cuda::ReadPlan plan = cuda::sm90_read_plan(back);
    for (const auto& config : cuda::sm90_backward_space(back, plan))
      EXPECT_FALSE(sm90_illegal(back, plan, config)) << line << ": " << text_of(config);
  }
  const problem::Problem p = problem_of("forward bf16 b2 h4 q4096 d128");
  Sm90ForwardConfig config = cuda::sm90_forward_candidates(p).front();
  config.block_kv = 240;
  EXPECT_NE(sm90_illegal(p, config)->find("registers"), std::string::npos);
  config.block_kv = 100;
  EXPECT_NE(sm90_illegal(p, config)->find("multiple of 16"), std::string::npos);
  config.block_kv = 128, config.stages = 8;
  EXPECT_NE(sm90_illegal(p, config)->find("shared memory"), std::string::npos);
}

class TunedFile : public testing::Test {
 protected:
  void write(const std::string& text) {
    std::ofstream(path_) << text;
    cuda::set_tuned_file(path_);
  }
  void TearDown() override { cuda::set_tuned_file(""); }
  test::OwnFolder own_;
  std::string path_ = (own_.path() / "table.txt").string();
};

TEST_F(TunedFile, PlansTakeWhatItSays) {
  const std::string
      line = "forward bf16 b2 h4 q4096 d64",
      config = "block_kv=112 consumers=3 stages=2 query_stages=2 ping_pong=1 intra_warpgroup_overlap=0 packed_heads=1 pair_stages=0";
  const std::string before = detail(line, "sm_90a", "tiles");
  EXPECT_EQ(before.find("192x112"), std::string::npos);
  write("# a comment\n" + tuned_line(problem_of(line), "sm_90a", "sm90.forward", config) + "\n");
  EXPECT_NE(detail(line, "sm_90a", "tiles").find("192x112"), std::string::npos);
  EXPECT_EQ(detail(line, "sm_90a", "configuration"), "tuned (" + path_ + ":2)");
  EXPECT_NE(detail("forward bf16 b3 h4 q4000 d64", "sm_90a", "tiles").find("192x112"), std::string::npos) << "of the same class";
  EXPECT_EQ(detail("forward bf16 b2 h4 q8192 d64", "sm_90a", "tiles").find("192x112"), std::string::npos) << "of another class";
  write(tuned_line(problem_of(line), "sm_90a", "sm90.forward", config) + " \r\n");
  EXPECT_NE(detail(line, "sm_90a", "tiles").find("192x112"), std::string::npos) << "as editors of Windows leave lines";
  write(tuned_line(problem_of(line), "another device", "sm90.forward", config));
  EXPECT_EQ(detail(line, "sm_90a", "tiles"), before);
}

TEST_F(TunedFile, ConfigurationsThatAreNotLegalAreNamedAndNotTaken) {
  const std::string line = "forward bf16 b2 h4 q4096 d128";
  const std::string before = detail(line, "sm_90a", "tiles");
  write(tuned_line(problem_of(line), "sm_90a", "sm90.forward",
                   "block_kv=144 consumers=3 stages=2 query_stages=1 ping_pong=1 intra_warpgroup_overlap=0 packed_heads=1 pair_stages=0"));
  EXPECT_EQ(detail(line, "sm_90a", "tiles"), before);
  EXPECT_NE(detail(line, "sm_90a", "configuration").find("not as tuned (" + path_ + ":1)"), std::string::npos);
  const std::string portable = "forward f32 b2 h4 q400 d64";
  write(tuned_line(problem_of(portable), "sm_80", "sm80.forward",
                   "block_q=64 block_kv=32 warps=8 row_tiles=1 stages=1 column_split=1 ctas=1"));
  EXPECT_NE(detail(portable, "sm_80", "configuration").find("not as tuned"), std::string::npos);
  write(tuned_line(problem_of(portable), "sm_80", "sm80.forward",
                   "block_q=32 block_kv=16 warps=2 row_tiles=1 stages=1 column_split=1 ctas=1"));
  EXPECT_EQ(detail(portable, "sm_80", "tiles"), "32x16 warps 2 stages 1");
  EXPECT_EQ(detail(portable, "sm_80", "configuration"), "tuned (" + path_ + ":1)");
}

TEST_F(TunedFile, WithoutOneExplainGivesTheReasonOfTheTable) {
  const std::string forward = detail("forward f32 b2 h4 q400 d128", "sm_80", "configuration");
  EXPECT_NE(forward.find("two stages"), std::string::npos) << forward;
  for (const char* name : {"dk, dv: configuration", "dq: configuration"}) {
    const std::string backward = detail("backward bf16 b2 h4 q400 d64", "sm_80", name);
    EXPECT_NE(backward.find("two CTAs on a multiprocessor"), std::string::npos) << name << ": " << backward;
  }
}

TEST_F(TunedFile, WhatIsNoTableIsRefused) {
  EXPECT_NE(message_of([&] { write("sm90.forward | block_kv=1\n"); }).find("table.txt:1"), std::string::npos);
  const std::string unknown = message_of([&] { write("# one\nsm_90a | sm90.foward | block_kv=112 | forward bf16 d64:64\n"); });
  EXPECT_NE(unknown.find("table.txt:2: unknown family sm90.foward; expected sm90.forward"), std::string::npos) << unknown;
  EXPECT_NE(message_of([] { cuda::set_tuned_file("/no/such/file"); }).find("/no/such/file: cannot be opened"), std::string::npos);
  EXPECT_NE(message_of([&] { cuda::set_tuned_file(own_.path().string()); }).find("cannot be read"), std::string::npos) << "a folder";
  EXPECT_NE(message_of([] { cuda::set_tuned_file("/dev/zero"); }).find("/dev/zero: more than"), std::string::npos)
      << "a file without an end";
  const std::string line = "forward bf16 b2 h4 q4096 d128";
  write(tuned_line(problem_of(line), "sm_90a", "sm90.forward", "block_kv=many"));
  EXPECT_NE(message_of([&] { test::MockPlan(problem::parse_line(line), "sm_90a"); }).find("table.txt:1"), std::string::npos);
}

class Tune : public test::NeedsNvrtc {};

/// As if tiles of 32 rows by 32 columns took a millisecond and everything else two.
void made_up_times(const cuda::driver::LaunchConfig& config, const void*, std::size_t) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(config.block_x == 64 ? 1000 : 2000);
  while (std::chrono::steady_clock::now() < until) continue;
}

TEST_F(Tune, FindsTheFastestAndPlansTakeIt) {
  const test::OwnFolder own;
  const std::string path = (own.path() / "table.txt").string(), line = "forward f64 b1 h1 q64 d16";
  CLI::App app("foveal");
  cli::add_tune(app);
  mock::call_for_launches(made_up_times);
  testing::internal::CaptureStdout();
  app.parse("tune --target sm80 --seconds 0.01 --write " + path + " '" + line + "'");
  const std::string text = testing::internal::GetCapturedStdout();
  mock::call_for_launches(nullptr);
  EXPECT_NE(text.find("mock sm80.forward: "), std::string::npos) << text;
  EXPECT_NE(text.find("(the table's)"), std::string::npos) << text;
  EXPECT_EQ(text.find("failed"), std::string::npos) << text;
  std::ifstream file(path);
  std::string first;
  std::getline(file, first);
  EXPECT_NE(first.find("mock | sm80.forward | block_q=32 block_kv=32 warps=2 "), std::string::npos) << first << "\n" << text;
  cuda::set_tuned_file(path);
  const auto choice = cuda::sm80_choice(problem_of(line), cuda::Sm80Kernel::forward, {232448, "mock"});
  cuda::set_tuned_file("");
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->config.block_q, 32);
  EXPECT_NE(choice->why.find(path + ":1"), std::string::npos);
}

}  // namespace
}  // namespace foveal
