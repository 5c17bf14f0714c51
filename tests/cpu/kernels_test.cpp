// Every kernel of the CPU backend against the exact results, by the tolerance rule: forward, the three backward strategies, on each target
// here.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "base/check.h"
#include "check/check.h"
#include "cpu/dispatch.h"
#include "foveal/foveal.h"
#include "problem/case_data.h"

namespace foveal {
namespace {

std::vector<std::string> available_targets() {
  std::vector<std::string> names;
  for (const cpu::Target& target : cpu::all_targets())
    if (target.available) names.push_back(target.name);
  return names;
}

const cpu::Target& target_of(const std::string& name) {
  const auto& all = cpu::all_targets();
  return *std::find_if(all.begin(), all.end(), [&](const cpu::Target& target) { return target.name == name; });
}

/// The table that a target uses for a type: the middle of the kernel's name.
std::string table_name(const std::string& target, DType dtype) {
  return dtype == DType::f64 ? target_of(target).f64->name : cpu::float_ops(target_of(target), dtype)->name;
}

/// The table for few lanes where the target has one that is faster, and all tiles are small; else null.
const char* decode_table(const std::string& target, const problem::Line& line) {
  const std::int64_t lanes = line.seqlen_q * line.heads_q / line.heads_kv;
  const cpu::Target& t = target_of(target);
  if (line.dtype == DType::f64) {
    const auto* ops = cpu::decode_ops<double>(t, line.dtype, lanes);
    return ops ? ops->name : nullptr;
  }
  const auto* ops = cpu::decode_ops<float>(t, line.dtype, lanes);
  return ops ? ops->name : nullptr;
}

/// bf16 with enough rows for a tile goes over packed keys where the target has them (AMX), by rows where scores are dot products and masks ranges, or over the
/// other kernel, which its name shows behind the bar.
std::string forward_kernel(const std::string& target, const problem::Line& line, bool by_ranges) {
  const std::string plain = "cpu." + table_name(target, line.dtype) + ".forward";
  if (const char* decode = decode_table(target, line)) return "cpu." + std::string(decode) + ".decode";
  const auto* packed = cpu::float_ops(target_of(target), line.dtype)->packed;
  if (!packed || line.dtype != DType::bf16 || line.attention.dropout_p > 0) return plain;
  problem::CaseData data(line);
  const TensorView q = data.view("q");
  const std::int64_t tokens = line.lengths.empty() ? line.seqlen_q : q.sizes[0] / static_cast<std::int64_t>(line.lengths.size());
  if (line.heads_q / line.heads_kv * tokens < packed->forward.layout.rows) return plain;
  return plain + (by_ranges && problem::to_string(line).find(" score=") == std::string::npos ? ".rows|forward" : ".scored|forward");
}

void expect_right(const check::Report& report, const std::string& kernel) {
  EXPECT_EQ(report.kernel, kernel) << report.line << ": " << report.failure;
  EXPECT_TRUE(report.pass) << report.line << "\n  on " << report.kernel << ": " << report.failure;
  for (const check::TensorReport& t : report.tensors)
    if (!t.pass)
      ADD_FAILURE() << t.name << ": error " << t.max_error << " (bound " << t.max_bound << "), rms " << t.rms_error << " (bound "
                    << t.rms_bound << ")";
}

struct Shape {
  const char* name;
  const char* text;       ///< everything but pass, type and target
  bool by_ranges = true;  ///< each row keeps a range of keys, as far as bounds tell
};

// One line for each thing that can go wrong: tails of lanes, keys and dims, unequal dims, groups, layouts, strides, lengths.
const Shape shapes[] = {
    {"one", "b1 h1 q1:1 d1"},
    {"tails", "b2 h3 q67:131 d33:17"},
    {"blocks", "b1 h2 q128:192 d64"},
    {"wide", "b1 h1 q65:70 d256:130"},
    {"widest", "b1 h1 q20:33 d512"},
    {"decode", "b2 h8:2 q1:150 d64"},
    {"decode_in_pieces", "b1 h4:2 q1:2100 d24 mask=causal_bottom_right() sink=s param=\"s: real[4] normal(2) grad\""},
    {"decode_one_lane", "b2 h3 q1:200 d100:40 mask=padding(n) param=\"n: integer[2] integers(1, 200)\""},
    {"decode_two_lanes", "b1 h4 q2:300 d65:33 layout=bhsd mask=causal_bottom_right() dropout=0.2:9"},
    {"decode_three_lanes", "b1 h3:1 q1:130 d40 layout=dim_first inputs=adversarial sink=s param=\"s: real[3] normal(2) grad\""},
    {"decode_five_lanes", "b2 h5:1 q1:131 d128 mask=\"kv_idx % 3 != head % 3\"", false},
    {"decode_six_lanes", "b1 h4:2 q3:77 d24:80 mask=causal_bottom_right() score=softcap(4)"},
    {"decode_seven_lanes", "b1 h14:2 q1:64 d17 scale=-0.4"},
    {"decode_eight_lanes", "b2 h4:1 q2:129 d32 score=\"score + bias[head, q_idx, kv_idx]\" param=\"bias: real[4, 2, 129] grad\""},
    {"decode_heads_together", "b2 h7 q1:1100 d40:24 mask=\"window(900) & (kv_idx % 5 != 1)\" sink=s param=\"s: real[7] normal(2) grad\""},
    {"decode_heads_that_differ", "b1 h12:6 q1:1500 d32 mask=\"kv_idx >= 200 * head\" layout=sbhd", false},
    {"decode_heads_of_packed", "b3 h6:3 q2:190 d32 lengths=1:170,2:190,2:5"},
    {"decode_lengths", "b3 h4:2 q2:120 d32 lengths=1:70,2:120,2:5"},
    {"few_queries", "b1 h6:2 q11:97 d48:80"},
    {"one_kv_head", "b1 h5:1 q70:64 d32"},
    {"one_key", "b1 h2 q90:1 d40"},
    {"bhsd", "b2 h2 q66:50 d24 layout=bhsd"},
    {"sbhd", "b2 h2 q66:50 d24 layout=sbhd"},
    {"packed_qkv", "b2 h3 q70:70 d32 layout=packed_qkv"},
    {"padded", "b2 h2 q66:50 d20 layout=padded"},
    {"dim_first", "b2 h2 q66:50 d24 layout=dim_first"},
    {"varlen", "b3 h4:2 q90:120 d32 lengths=90:70,1:120,37:5"},
    {"varlen_empty", "b3 h2 q40:60 d16 lengths=40:0,0:60,33:44"},
    {"scale", "b1 h2 q40:90 d16 scale=0.7"},
    {"negative_scale", "b1 h2 q40:90 d16 scale=-0.4"},
    {"zero_scale", "b1 h2 q40:90 d16 scale=0"},
    {"adversarial", "b1 h2 q100:200 d64 inputs=adversarial"},
    // Masks: by ranges, by programs, by batch and head, by data; tiles skipped, full and partial.
    {"causal", "b2 h2 q200:200 d32 mask=causal()"},
    {"causal_bottom_right", "b1 h2 q70:260 d32 mask=causal_bottom_right()"},
    {"causal_empty_rows", "b1 h2 q260:70 d32 mask=causal_bottom_right()"},
    {"window", "b1 h4:2 q300:300 d24 mask=\"causal() & window(70)\""},
    {"prefix", "b1 h2 q200:200 d24 mask=prefix_lm(90)"},
    {"dilated", "b1 h2 q150:150 d24 mask=\"dilated(60, 3)\"", false},
    {"document", "b2 h4:2 q260:260 d24 mask=\"document(ids)\" param=\"ids: integer[2, 260] segments(4)\"", false},
    {"padding", "b3 h2 q140:140 d24 mask=padding(n) param=\"n: integer[3] integers(1, 140)\""},
    {"mask_by_head", "b1 h6:2 q20:200 d16 mask=\"kv_idx % 6 != head\"", false},
    {"nothing", "b1 h2 q70:70 d16 mask=\"kv_idx > q_idx + 90\""},
    {"varlen_causal", "b3 h4:2 q90:120 d32 lengths=90:70,1:120,37:5 mask=causal_bottom_right()"},
    {"offsets", "b1 h2 q70:200 d16 q_offset=130 kv_offset=20 mask=causal()"},
    // Scores, with trained parameters.
    {"softcap", "b1 h2 q100:130 d32 score=softcap(4) inputs=adversarial"},
    {"alibi_causal", "b1 h4 q150:150 d32 score=alibi(4) mask=causal()"},
    {"relative",
     "b2 h4:2 q130:130 d32 score=\"score + rel[head, clamp(kv_idx - q_idx, -16, 16) + 16]\" "
     "param=\"rel: real[4, 33] normal(0.3) grad\" mask=causal()"},
    {"two_reads", "b2 h2 q90:110 d16 score=\"score * (1 + t[q_idx % 5]) + t[kv_idx % 5]\" param=\"t: real[5] normal(0.2) grad\""},
    {"dense_bias", "b2 h2 q70:90 d16 score=\"score + bias[head, q_idx, kv_idx]\" param=\"bias: real[2, 70, 90] grad\""},
    {"half_biases",
     "b1 h2 q70:90 d16 score=\"score + m[q_idx, kv_idx] + n[kv_idx, q_idx] + t[q_idx, kv_idx % 7]\" param=\"m: real[70, 90] f16\" "
     "param=\"n: real[90, 70] f16\" param=\"t: real[70, 7] f16\""},
    {"decode_scored", "b2 h8:2 q1:150 d16 score=\"score + slope[head] * kv_idx\" param=\"slope: real[8] normal(0.05) grad\""},
    // Sinks, dropout, and everything at once.
    {"sink", "b2 h4:2 q80:100 d32 sink=s param=\"s: real[4] normal(2) grad\""},
    {"sink_empty_rows", "b1 h2 q150:70 d16 sink=s param=\"s: real[2] grad\" mask=causal_bottom_right()"},
    {"dropout", "b2 h4:2 q80:100 d32 dropout=0.3:77:5"},
    {"wide_heads", "b1 h4:2 q20:33 d1024:600 mask=\"causal()\""},
    {"odd_wide_heads", "b1 h1 q33:20 d513:1023 score=\"5.0 * tanh(score / 5.0)\""},
    {"everything",
     "b2 h4:2 q130:150 d24:40 layout=bhsd score=\"score + rel[head, clamp(kv_idx - q_idx, -9, 9) + 9]\" "
     "param=\"rel: real[4, 19] normal(0.3) grad\" param=\"s: real[4] normal(1) grad\" sink=s dropout=0.2:9 mask=\"causal_bottom_right() & "
     "window(90)\" scale=0.3"},
};

std::string shape_name(const testing::TestParamInfo<Shape>& info) { return info.param.name; }

class CpuKernels : public testing::TestWithParam<Shape> {};

TEST_P(CpuKernels, ForwardIsExact) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const problem::Line line = problem::parse_line(base::join("forward ", to_string(dtype), " ", GetParam().text));
    const check::Checker check(line);
    for (const std::string& target : available_targets())
      expect_right(check({.backend = "cpu", .target = target}), forward_kernel(target, line, GetParam().by_ranges));
  }
}

TEST_P(CpuKernels, BackwardIsExact) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const char* strategy : {"fused", "split", "two_scan"}) {
      const problem::Line line =
          problem::parse_line(base::join("backward ", to_string(dtype), " ", GetParam().text, " dlse strategy=", strategy));
      const check::Checker check(line);
      for (const std::string& target : available_targets())
        expect_right(check({.backend = "cpu", .target = target}), "cpu." + table_name(target, dtype) + ".backward." + strategy);
    }
}

/// The strategy that is chosen where none is asked for: with AMX, tiles over packed keys.
TEST_P(CpuKernels, TheChosenBackwardIsExact) {
  const problem::Line line = problem::parse_line(base::join("backward bf16 ", GetParam().text, " dlse"));
  const check::Checker check(line);
  for (const std::string& target : available_targets()) {
    const check::Report report = check({.backend = "cpu", .target = target});
    EXPECT_EQ(report.kernel.find("cpu." + table_name(target, line.dtype) + ".backward."), 0u) << report.kernel;
    EXPECT_TRUE(report.pass) << report.line << "\n  on " << report.kernel << ": " << report.failure;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuKernels, testing::ValuesIn(shapes), shape_name);

/// The bits of everything that a backward with random out and lse writes.
std::vector<double> gradients(const problem::Line& line, const PlanOptions& options) {
  problem::CaseData data(line);
  forward(line.attention, data.forward_inputs(), data.forward_outputs(), {}, options);
  backward(line.attention, data.backward_inputs(), data.backward_outputs(), {}, options);
  std::vector<double> all;
  const auto add = [&all](const TensorView& view) {
    const std::vector<double> values = problem::values_of(view);
    all.insert(all.end(), values.begin(), values.end());
  };
  for (const char* role : {"out", "lse", "dq", "dk", "dv"}) add(data.view(role));
  for (std::size_t i = 0; i < line.params.size(); ++i)
    if (line.params[i].grad) add(data.dparam(i));
  return all;
}

TEST(CpuDeterminism, SameBitsForEveryRunAndAnyNumberOfThreads) {
  for (const char* strategy : {"fused", "split", "two_scan"})
    for (const char* type : {"f32", "bf16"}) {
      const problem::Line line = problem::parse_line(base::join(
          "backward ", type,
          " b1 h4:2 q700 d32 mask=causal() score=\"score + rel[head, clamp(kv_idx - q_idx, -9, 9) + 9] + t[q_idx % 3]\" ",
          "param=\"rel: real[4, 19] grad\" param=\"t: real[3] grad\" param=\"s: real[4] grad\" sink=s dropout=0.1 dlse strategy=",
          strategy));
      const std::vector<double> once = gradients(line, {.backend = "cpu", .threads = 1});
      for (int run = 0; run < 20; ++run)
        EXPECT_EQ(gradients(line, {.backend = "cpu", .threads = 1 + run % 4}), once) << strategy << ' ' << type;
    }
}

TEST(CpuPlans, ForcedTargetsThatAreMissingAreRefusedWithTheReason) {
  const problem::Line line = problem::parse_line("forward f32 b1 h1 q8 d8");
  problem::CaseData data(line);
  for (const cpu::Target& target : cpu::all_targets()) {
    const PlanOptions options{.backend = "cpu", .target = target.name};
    if (target.available) {
      EXPECT_NE(plan(line.attention, data.forward_inputs(), data.forward_outputs(), options).kernel(), "");
      continue;
    }
    try {
      plan(line.attention, data.forward_inputs(), data.forward_outputs(), options);
      ADD_FAILURE() << target.name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      EXPECT_NE(std::string(error.what()).find("target " + target.name + ": CPU lacks"), std::string::npos) << error.what();
    }
  }
}

#if defined(__aarch64__) && defined(__linux__)
/// By name: a target that is not found, or that is passed over, fails here.
TEST(CpuTypes, ProductsOf16BitsAreThoseOfTheProcessor) {
  const bool fhm = getauxval(AT_HWCAP) >> 23 & 1, bf16 = getauxval(AT_HWCAP2) >> 14 & 1;
  const auto expect_kernels = [](const char* type, const std::string& target, const std::string& table) {
    for (const char* pass : {"forward", "backward"}) {
      const problem::Line line = problem::parse_line(base::join(pass, ' ', type, " b1 h1 q70 d16"));
      const check::Report report = check::Checker(line)({.backend = "cpu", .target = target});
      EXPECT_EQ(report.kernel.find(base::join("cpu.", table, '.', pass)), 0u) << type << " on '" << target << "': " << report.kernel;
      EXPECT_TRUE(report.pass) << report.failure;
    }
  };
  expect_kernels("f16", "", fhm ? "neonfhm.f16" : "neon.f32");
  expect_kernels("bf16", "", bf16 ? "neonbf16.bf16" : "neon.f32");
  expect_kernels("f32", "", "neon.f32");
  expect_kernels("f64", "", "neon.f64");
  if (fhm) {
    expect_kernels("f16", "neonfhm", "neonfhm.f16");
    expect_kernels("bf16", "neonfhm", "neon.f32");
    expect_kernels("f64", "neonfhm", "neon.f64");
  }
  if (bf16) expect_kernels("f16", "neonbf16", "neon.f32");
}

/// FMLAL rounds once, as FMA does on converted operands, and sums in the same order.
TEST(CpuTypes, F16ByFmlalHasTheBitsOfFp32) {
  if (!target_of("neonfhm").available) GTEST_SKIP() << target_of("neonfhm").detail;
  for (const char* strategy : {"fused", "split", "two_scan"})
    for (const char* shape : {"b1 h4:2 q200:200 d40:24 mask=causal()", "b1 h2 q70:130 d65 layout=bhsd scale=-0.4",
                              "b2 h2 q90 d32 mask=causal() score=\"score + t[q_idx % 5]\" param=\"t: real[5] grad\" dropout=0.1:3"}) {
      const problem::Line line = problem::parse_line(base::join("backward f16 ", shape, " strategy=", strategy));
      EXPECT_EQ(gradients(line, {.backend = "cpu", .target = "neonfhm"}), gradients(line, {.backend = "cpu", .target = "neon"})) << shape;
    }
}
#endif

/// By name: where the tables for few lanes are not found, the tests above would expect the others.
TEST(CpuPlans, TilesOfFewLanesHaveKernelsOfTheirOwn) {
  const auto kernel = [](const std::string& target, const std::string& shape) {
    const problem::Line line = problem::parse_line("forward " + shape + " d64");
    problem::CaseData data(line);
    return plan(line.attention, data.forward_inputs(), data.forward_outputs(), {.backend = "cpu", .target = target}).kernel();
  };
  for (const auto& [target, table, f32_lanes, bf16_lanes] :
       {std::tuple{"avx2", "avx2", 4, 8}, {"avx512", "avx512", 8, 8}, {"avx512bf16", "avx512", 8, 8}, {"amx", "avx512", 8, 4}}) {
    const auto targets = available_targets();
    if (std::ranges::find(targets, target) == targets.end()) continue;
    for (const auto& [type, lanes] : {std::pair{"f32", f32_lanes}, {"bf16", bf16_lanes}, {"f16", 8}, {"f64", 8}}) {
      const std::string decode = base::join("cpu.", table, '.', type, ".decode");
      EXPECT_EQ(kernel(target, base::join(type, " b1 h3 q1:70")), decode) << target;
      EXPECT_EQ(kernel(target, base::join(type, " b1 h", lanes, ":1 q1:70")), decode) << target;
      EXPECT_EQ(kernel(target, base::join(type, " b1 h", lanes + 1, ":1 q1:70")).find("decode"), std::string::npos) << target;
    }
  }
}

TEST(CpuPlans, HeadsThatLieSideBySideAreWalkedTogether) {
  const auto plans = [](const std::string& text) {
    const problem::Line line = problem::parse_line("forward f32 " + text);
    problem::CaseData data(line);
    std::string heads = "1 head", splits = "1 split";
    for (const auto& [name, value] :
         plan(line.attention, data.forward_inputs(), data.forward_outputs(), {.backend = "cpu"}).explain().details) {
      if (name == "kv heads in a task") heads = value + " heads";
      if (name == "split-KV") splits = value.substr(0, value.find(" of"));
    }
    return heads + ", " + splits;
  };
  if (decode_table(available_targets().front(), problem::parse_line("forward f32 b1 h1 q1:1 d1")) == nullptr) GTEST_SKIP();
  EXPECT_EQ(plans("b1 h32 q1:4096 d16"), "32 heads, 16 splits");
  EXPECT_EQ(plans("b1 h32 q1:4096 d16 layout=bhsd"), "1 head, 1 split");
  EXPECT_EQ(plans("b16 h12 q1:128 d64"), "12 heads, 1 split");  // as many tasks as sequences
  EXPECT_EQ(plans("b1 h12 q1:100 d64"), "12 heads, 1 split");   // small
  EXPECT_EQ(plans("b1 h8:1 q1:8192 d16"), "1 head, 16 splits");
  EXPECT_EQ(plans("b1 h8:4 q1:8192 d16 pages=64"), "4 heads, 16 splits");
  EXPECT_EQ(plans("b2 h8 q1:300 d1024"), "1 head, 1 split");  // a block of two heads is more than the share of L2
}

/// More than an L3: the rows of all heads are prefetched in the order of memory.
TEST(CpuPlans, KeysFromMemoryAreRight) {
  for (const char* text : {"f64 b1 h9 q1:4000 d64", "f64 b2 h10:5 q1:4200 d64:50 pages=48 seqlens_kv=4100,3000"}) {
    const problem::Line line = problem::parse_line(std::string("forward ") + text);
    if (decode_table(available_targets().front(), line) != nullptr) {
      problem::CaseData data(line);
      const auto details = plan(line.attention, data.forward_inputs(), data.forward_outputs(), {.backend = "cpu"}).explain().details;
      EXPECT_NE(std::ranges::find(details, std::pair<std::string, std::string>("prefetch", "of the next block of all heads")),
                details.end());
    }
    const check::Checker check(line);
    for (const std::string& target : available_targets()) {
      const check::Report report = check({.backend = "cpu", .target = target});
      EXPECT_TRUE(report.pass) << report.line << "\n  on " << report.kernel << ": " << report.failure;
    }
  }
}

TEST(CpuPlans, HeadDimsAbove1024AreRefused) {
  const problem::Line line = problem::parse_line("forward f32 b1 h1 q8 d1025:8");
  problem::CaseData data(line);
  try {
    plan(line.attention, data.forward_inputs(), data.forward_outputs(), {.backend = "cpu"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("head_dim 1025 exceeds 1024"), std::string::npos) << error.what();
  }
}

TEST(CpuPlans, WorkspaceGrowsWithTheSequenceAndNotWithItsSquare) {
  const auto bytes = [](std::int64_t seqlen) {
    return plan({.mask = causal()}, Shapes{.heads_q = 2, .heads_kv = 2, .seqlen_q = seqlen, .seqlen_kv = seqlen}, Pass::backward, {},
                {.backend = "cpu"})
        .workspace_bytes();
  };
  EXPECT_LT(bytes(32768), std::size_t{256} << 20);
  EXPECT_LT(bytes(32768), 9 * bytes(4096));
}

}  // namespace
}  // namespace foveal
