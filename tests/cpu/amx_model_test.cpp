// The AMX schedule through complete forward and backward passes, on the scalar model of its tiles, judged by the tolerance rule like every
// kernel.
#include <gtest/gtest.h>

#include <bit>

#include "amx_model_run.h"
#include "base/check.h"
#include "base/float16.h"
#include "check/check.h"

namespace foveal::cpu {
namespace {

struct Shape {
  const char* name;
  const char* text;
  bool plain = true;   ///< no program
  bool packed = true;  ///< the kernels over packed tensors serve it
};

const Shape shapes[] = {
    {"one", "b1 h1 q1:1 d1", false, false},
    {"tails", "b2 h3 q67:131 d33:17"},
    {"blocks", "b1 h2 q128:256 d64"},
    {"causal", "b1 h2 q200:200 d64 mask=\"kv_idx <= q_idx\""},
    {"window", "b1 h2 q150:300 d32 mask=\"kv_idx <= q_idx + 150 and q_idx - kv_idx < 40\""},
    {"gqa", "b1 h6:2 q11:140 d48:80"},
    {"varlen", "b3 h2 q90:160 d32 lengths=90:70,1:160,37:5"},
    {"score", "b1 h2 q70:140 d64 score=\"30 * tanh(score / 30) + 0.1 * (kv_idx - q_idx)\"", false},
    {"table", "b1 h2 q70:140 d32 score=\"score + rel[head, clamp(kv_idx - q_idx, -8, 8) + 8]\" param=\"rel: real[2, 17] grad\"", false},
    {"dropout", "b1 h2 q70:140 d32 dropout=0.2", false, false},
    {"adversarial", "b1 h2 q100:200 d64 inputs=adversarial"},
    {"few_keys", "b2 h2 q40:5 d64"},
    {"one_key", "b1 h1 q64:1 d16:8"},
    {"wide", "b1 h1 q80:200 d192:128 mask=causal()"},
    {"heads", "b1 h8:2 q50:150 d64 mask=causal()"},
    {"chunks", "b1 h1 q32:2000 d80:96 mask=\"kv_idx <= q_idx + 1960\""},
    {"no_keys", "b1 h2 q100:200 d64 mask=\"kv_idx <= q_idx - 40\""},
    {"sink", "b1 h2 q100 d64 mask=causal() sink=s param=\"s: real[2]\""},
    {"strided", "b2 h4 q100 d64 layout=dim_first mask=causal()"},
    {"negative_scale", "b1 h1 q70:300 d64 scale=-0.3"},
    {"one_column", "b1 h1 q40:1000 d16:8 scale=3"},
    {"trained_sink", "b1 h4:2 q70 d64 mask=causal() sink=s param=\"s: real[4] grad\""},
    {"splits", "b1 h1 q1100 d32 mask=causal()"},
    {"steps", "b1 h1 q140:70 d512:300"},
    {"wider_keys", "b1 h1 q140:150 d576:512 mask=causal()"},
    {"widest", "b1 h1 q140:150 d1024"},
    {"band", "b1 h1 q330 d64 mask=\"kv_idx <= q_idx and q_idx - kv_idx < 70\""},
    // Head dims above 64: the forward's products with v come after the vectors of 256 keys.
    {"wide_causal", "b1 h2 q300 d128 mask=causal()"},
    {"wide_window", "b1 h1 q150:900 d96 mask=\"kv_idx <= q_idx + 720 and q_idx - kv_idx < -290\""},
    {"wide_gqa", "b1 h6:2 q11:300 d72:40"},
    {"wide_varlen", "b3 h2 q90:300 d128:80 lengths=90:270,1:300,37:5"},
    {"wide_adversarial", "b1 h2 q100:600 d128 inputs=adversarial"},
    {"wide_large_scores", "b1 h1 q560 d96 scale=40 mask=causal()"},
    {"wide_sink", "b1 h2 q100 d40:128 mask=causal() sink=s param=\"s: real[2] grad\""},
    {"wide_no_keys", "b1 h1 q100:300 d128 mask=\"kv_idx <= q_idx - 40\""},
    {"wide_chunks", "b1 h1 q32:1300 d256 mask=\"kv_idx <= q_idx + 1260\""},
    {"program_mask", "b1 h1 q100 d32 mask=\"(q_idx + kv_idx) % 3 != 0\"", false},
    {"huge_scores", "b1 h2 q70:300 d64 scale=1e9 mask=causal()"},
    {"wide_huge_scores", "b1 h1 q100:400 d96 scale=1e30"},
    {"soft_mask", "b1 h2 q70:140 d32 score=\"where(q_idx < 20, -1e9, score)\"", false},
    {"scored_tables",
     "b2 h4:2 q90:200 d64 mask=causal() score=\"score + rel[head, clamp(kv_idx - q_idx, -8, 8) + 8] + bias[q_idx, kv_idx] * gate[head]\" "
     "param=\"rel: real[4, 17] grad\" param=\"bias: real[90, 200] grad\" param=\"gate: real[4] grad\"",
     false},
    {"scored_window", "b1 h2 q150:700 d32:80 mask=\"kv_idx <= q_idx + 450 and q_idx - kv_idx < -240\" score=\"20 * tanh(score / 20)\"",
     false},
    {"scored_splits", "b1 h1 q1100 d32 mask=causal() score=\"score * g[0]\" param=\"g: real[1] grad\"", false},
    {"scored_tails", "b2 h3 q67:131 d33:17 score=\"score + 0.1 * (kv_idx - q_idx)\"", false},
    {"scored_gqa", "b1 h6:2 q11:140 d48:80 mask=causal() score=\"score - 0.3 * head * abs(kv_idx - q_idx)\"", false},
    {"scored_varlen", "b3 h2 q90:160 d32 lengths=90:70,1:160,37:5 mask=causal() score=\"score * 1.5\"", false},
    {"scored_wide", "b1 h1 q80:300 d192:128 mask=causal() score=\"score + 0.2 * kv_idx\"", false},
    {"scored_widest", "b1 h1 q40:150 d1024 score=\"2 * score\"", false},
    {"scored_chunks", "b1 h1 q32:2000 d80:96 mask=\"kv_idx <= q_idx + 1960\" score=\"score + kv_idx % 7\"", false},
    {"scored_sink", "b1 h2 q100 d64 mask=causal() score=\"score / 2\" sink=s param=\"s: real[2]\"", false},
    {"scored_no_keys", "b1 h2 q100:200 d64 mask=\"kv_idx <= q_idx - 40\" score=\"score / 2\"", false},
    {"scored_soft_infinity", "b1 h2 q70:140 d64 score=\"where(kv_idx % 3 == 0, -inf, score)\"", false},
    {"scored_adversarial", "b1 h2 q100:200 d64 inputs=adversarial score=\"score * 1.5\"", false},
    {"scored_lowest", "b1 h2 q70:300 d32 score=\"where(kv_idx < q_idx * 3, -3.4e38, score)\"", false},
    // Keys that do not exist have dot products of 0, whose exponential, 2^128, would be no number.
    {"scored_below", "b1 h2 q70:131 d64 score=\"score - 94.5\"", false},
    {"scored_rising", "b1 h1 q70:600 d64 score=\"score + 3 * kv_idx\"", false},
    {"masked_by_table", "b1 h2 q100:200 d64 mask=\"keep[q_idx, kv_idx]\" param=\"keep: boolean[100, 200]\"", false},
    {"masked_sink", "b1 h2 q70 d64 mask=\"(q_idx + kv_idx) % 3 != 0\" sink=s param=\"s: real[2]\"", false},
    {"large_scores", "b1 h1 q70:300 d64 scale=40 mask=causal()"},
    // dk and dv of keys on pages are f32 until they land there.
    {"pages", "b1 h3:1 q20:32 d40 pages=32:1 seqlens_kv=3"},
    {"few_keys_on_pages", "b2 h4:1 q13:128 d32 pages=128:3 seqlens_kv=3,2 mask=\"kv_idx <= q_idx\""},
    {"one_head_on_pages", "b1 h1 q40:48 d26 pages=16:3 seqlens_kv=22 layout=bhsd"},
    {"wide_values_on_pages", "b1 h3:1 q16:64 d40:495 pages=32:4 seqlens_kv=35 layout=bhsd q_offset=87"},
};

class AmxModel : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "the vector half of the AMX target needs AVX-512-BF16";
  }
  static void expect_right(const std::string& line, std::string kernel) {
    if (line.find("pages=") != std::string::npos && line.starts_with("backward")) kernel += ".gathered";
    const check::Report report = check::Checker(problem::parse_line(line)).judge(run_amx_model);
    EXPECT_TRUE(report.pass) << line << ": " << report.failure;
    EXPECT_EQ(report.kernel, kernel);
  }
};

TEST_P(AmxModel, ForwardIsExact) {
  const auto& [name, text, plain, packed] = GetParam();
  expect_right(base::join("forward bf16 ", text), base::join("cpu.amx_model.bf16.forward", !packed ? ""
                                                                                           : plain ? ".rows|forward"
                                                                                                   : ".scored|forward"));
}

TEST_P(AmxModel, BackwardIsExact) {
  const auto& [name, text, plain, packed] = GetParam();
  expect_right(base::join("backward bf16 ", text, " dlse"), base::join("cpu.amx_model.bf16.backward.",
                                                                       !packed ? ""
                                                                       : plain ? "tiles|backward."
                                                                               : "scored|backward.",
                                                                       "fused"));
  for (const char* strategy : {"fused", "split"}) {
    expect_right(base::join("backward bf16 ", text, " dlse strategy=", strategy), base::join("cpu.amx_model.bf16.backward.", strategy));
  }
}

/// A pass that may hand a call to another says so, and where.
TEST(AmxModelFallback, IsNamed) {
  for (const char* line : {"forward bf16 b1 h2 q130 d64 mask=causal()", "backward bf16 b1 h2 q130 d64 mask=causal()"}) {
    problem::CaseData data(problem::parse_line(line));
    const Attention& attention = data.line().attention;
    const bool forward = data.line().pass == foveal::Pass::forward;
    const problem::Problem problem = forward ? problem::make_problem(attention, data.forward_inputs(), data.forward_outputs())
                                             : problem::make_problem(attention, data.backward_inputs(), data.backward_outputs());
    const auto pass =
        forward ? make_forward(problem, amx_model_target, amx_model, {}) : make_backward(problem, amx_model_target, amx_model, {});
    Explanation explanation;
    pass->describe(explanation);
    ASSERT_FALSE(explanation.details.empty());
    const auto& [name, text] = explanation.details.back();
    EXPECT_EQ(name, "otherwise");
    EXPECT_EQ(text.find(forward ? "cpu.amx_model.bf16.forward, where v holds infinity or NaN"
                                : "cpu.amx_model.bf16.backward.fused, where a tensor"),
              0u)
        << text;
    EXPECT_NE(pass->kernel().find(forward ? ".forward.rows|forward" : ".backward.tiles|backward.fused"), std::string::npos)
        << pass->kernel();
  }
}

/// A mask by a program drops pairs of unscaled products, which a negative scale would bring back: block operations serve these.
TEST(AmxModelFallback, MasksByProgramsUnderANegativeScale) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP();
  const std::string problem = " bf16 b1 h2 q100:200 d64 scale=-0.3 mask=\"keep[q_idx, kv_idx]\" param=\"keep: boolean[100, 200]\"";
  for (const auto& [pass, kernel] : {std::pair{"forward", "forward.scored|forward"}, {"backward", "backward.fused"}}) {
    const check::Report report = check::Checker(problem::parse_line(pass + problem)).judge(run_amx_model);
    EXPECT_TRUE(report.pass) << report.failure;
    EXPECT_EQ(report.kernel, base::join("cpu.amx_model.bf16.", kernel));
  }
}

/// So that the shapes above meet both orders of the forward.
TEST(AmxModelBlocks, FollowHeadDims) {
  EXPECT_EQ(amx_model.packed->forward.block(64, 64), 64);
  EXPECT_EQ(amx_model.packed->forward.block(65, 8), 256);
  EXPECT_EQ(amx_model.packed->forward.block(8, 65), 256);
}

/// Tiles share tasks according to the number of threads, which changes nothing.
TEST(AmxModelThreads, DoNotShowForward) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP();
  for (const char* line : {"forward bf16 b1 h2 q1030 d64 mask=causal()", "forward bf16 b1 h2 q1030 d72 mask=causal()",
                           "forward bf16 b1 h2 q1030 d64 mask=causal() score=\"score + 3 * (kv_idx - q_idx)\""}) {
    problem::CaseData data(problem::parse_line(line));
    std::vector<std::vector<double>> found;
    for (const int threads : {1, 3}) {
      run_amx_model_pass(data.line().attention, data.forward_inputs(), data.forward_outputs(), make_forward<float>, threads);
      found.push_back(problem::values_of(data.view("out")));
      found.push_back(problem::values_of(data.view("lse")));
    }
    EXPECT_EQ(found[0], found[2]) << line;
    EXPECT_EQ(found[1], found[3]) << line;
  }
}

/// One kv head in several splits, and several in one each.
TEST(AmxModelThreads, DoNotShowBackward) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP();
  for (const char* line :
       {"backward bf16 b1 h1 q1100 d32 mask=causal()", "backward bf16 b8 h4:2 q90:200 d32 sink=s param=\"s: real[4] grad\"",
        "backward bf16 b3 h2 q90:160 d32 lengths=90:70,0:160,37:5",
        "backward bf16 b2 h4:2 q1100 d32 mask=causal() score=\"score + t[head, clamp(q_idx - kv_idx, 0, 8)] * g[q_idx]\" "
        "param=\"t: real[4, 9] grad\" param=\"g: real[1100] grad\"",
        "backward bf16 b1 h2 q300 d64 mask=\"keep[q_idx, kv_idx]\" param=\"keep: boolean[300, 300]\""}) {
    problem::CaseData data(problem::parse_line(line));
    const Attention& attention = data.line().attention;
    run_amx_model_pass(attention, data.forward_inputs(), data.forward_outputs(), make_forward<float>);
    std::vector<std::vector<double>> found;
    for (const int threads : {1, 3, 2}) {
      const std::string kernel =
          run_amx_model_pass(attention, data.backward_inputs(), data.backward_outputs(), make_backward<float>, threads);
      EXPECT_NE(kernel, "cpu.amx_model.bf16.backward.fused");
      found.emplace_back();
      std::vector<TensorView> gradients{data.view("dq"), data.view("dk"), data.view("dv")};
      for (std::size_t i = 0; i < data.line().params.size(); ++i)
        if (data.dparam(i).present()) gradients.push_back(data.dparam(i));
      for (const TensorView& gradient : gradients) {
        const std::vector<double> values = problem::values_of(gradient);
        found.back().insert(found.back().end(), values.begin(), values.end());
      }
    }
    EXPECT_EQ(found[0], found[1]) << line;
    EXPECT_EQ(found[0], found[2]) << line;
  }
}

/// out and gradients of bf16 problems may be f32: where parts are added, and for keys on pages.
class Widened {
 public:
  explicit Widened(const TensorView& narrow) : view(narrow) {
    std::int64_t last = 0;
    for (int i = 0; i < view.rank; ++i) {
      const auto dim = static_cast<std::size_t>(i);
      last += (view.sizes[dim] - 1) * view.strides[dim];
    }
    values_.assign(static_cast<std::size_t>(last) + 1, -1.0f);
    view.data = values_.data(), view.dtype = DType::f32;
  }
  TensorView view;

 private:
  std::vector<float> values_;
};

void expect_rounded(const TensorView& wide, const TensorView& narrow, const std::string& what) {
  const std::vector<double> of_wide = problem::values_of(wide), of_narrow = problem::values_of(narrow);
  ASSERT_EQ(of_wide.size(), of_narrow.size());
  int unlike = 0, rounded = 0;
  for (std::size_t i = 0; i < of_wide.size(); ++i) {
    unlike += std::bit_cast<float>(std::uint32_t{base::float_to_bf16(static_cast<float>(of_wide[i]))} << 16) != of_narrow[i];
    rounded += of_wide[i] != of_narrow[i];
  }
  EXPECT_EQ(unlike, 0) << what;
  EXPECT_GT(rounded, static_cast<int>(of_wide.size() / 2)) << what << ": nothing that only f32 holds";
}

TEST(AmxModelWideOutputs, AreThoseThatAreRoundedElse) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "the vector half of the AMX target needs AVX-512-BF16";
  for (const char* line : {"backward bf16 b2 h4:2 q70:90 d40:24", "backward bf16 b2 h2 q100 d64:33 layout=dim_first mask=causal()",
                           "backward bf16 b1 h2 q64 d16 layout=padded"}) {
    problem::CaseData data(problem::parse_line(line));
    const Attention& attention = data.line().attention;
    EXPECT_NE(run_amx_model(data).find(".backward.tiles|"), std::string::npos);
    const Widened out(data.view("out")), dq(data.view("dq")), dk(data.view("dk")), dv(data.view("dv"));
    ForwardOutputs outputs = data.forward_outputs();
    outputs.out = out.view;
    EXPECT_NE(run_amx_model_pass(attention, data.forward_inputs(), outputs, make_forward<float>).find(".forward.rows|"), std::string::npos);
    BackwardOutputs gradients = data.backward_outputs();
    gradients.dq = dq.view, gradients.dk = dk.view, gradients.dv = dv.view;
    run_amx_model_pass(attention, data.backward_inputs(), gradients, make_backward<float>);
    expect_rounded(out.view, data.view("out"), base::join(line, ": out"));
    expect_rounded(dq.view, data.view("dq"), base::join(line, ": dq"));
    expect_rounded(dk.view, data.view("dk"), base::join(line, ": dk"));
    expect_rounded(dv.view, data.view("dv"), base::join(line, ": dv"));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AmxModel, testing::ValuesIn(shapes), [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foveal::cpu
