// Every configuration that tune can choose for the Hopper kernels compiles for sm_90a without spills and with its products in flight; masks
// become bands where they are bands; task orders even out.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/check.h"
#include "cuda/device/score/small_tanh.cuh"
#include "cuda/jit/compile.h"
#include "cuda/kernels_of.h"
#include "cuda/launch/backward_sm90.h"
#include "cuda/launch/forward_sm90.h"
#include "cuda/launch/gradient_pass_sm90.h"
#include "cuda/launch/sm90_args.h"
#include "cuda/score/score_emit.h"
#include "cuda/tune/read_plan.h"
#include "cuda/tune/sm90_order.h"
#include "machine_code.h"
#include "mask/band.h"
#include "mask/block_mask.h"
#include "nvrtc_here.h"
#include "problems.h"

namespace foveal::cuda {
namespace {

using test::problem_of;

class Sm90 : public test::NeedsNvrtc {};

std::vector<jit::KernelSource> sources_of(const problem::Problem& p) {
  std::vector<jit::KernelSource> sources;
  if (p.pass == Pass::forward) {
    for (const Sm90ForwardConfig& config : sm90_forward_candidates(p)) sources.push_back(forward_sm90_source(p, config));
  } else {
    for (const Sm90BackwardConfig& config : sm90_backward_candidates(p, sm90_read_plan(p))) {
      sources.push_back(backward_sm90_source(p, config));
      sources.push_back(backward_prepare_sm90_source(p, config));
      sources.push_back(backward_convert_sm90_source(p, config));
    }
    if (const auto config = sm90_read_plan(p).collect) sources.push_back(collect_sm90_source(p, *config));
  }
  for (jit::KernelSource& source : sources) source.arch = "sm_90a";
  return sources;
}

/// No products one after the other, few spills, no lanes that part in a plain forward pass, and no loads of elements of pairs, lse or delta
/// that TMA could overtake; of these, a plain forward pass has none.
void expect_clean(const jit::Image& image, const std::string& line, int spills_allowed) {
  // What the pass over dq calls where a sum is lost makes do with the registers that keep all warps at their loads.
  const bool mends = image.stem == "backward_convert_sm90" && image.facts.registers <= 40;
  EXPECT_LE(mends ? 0 : image.facts.spill_bytes, spills_allowed) << line << " " << image.stem;
  EXPECT_FALSE(image.facts.serialized) << line << " " << image.stem << "\n" << image.facts.notes;
  if (line.rfind("backward", 0) == 0 || line.find("q_idx, kv_idx]") != std::string::npos) {
    EXPECT_EQ(test::arrivals_amid_loads(image.bytes), 0) << line << " " << image.stem;
  }
  if ((image.stem == "forward_sm90" || image.stem == "decode_sm90") && line.find("score=") == std::string::npos) {
    EXPECT_LE(test::instructions_of(image.bytes)[test::WARPSYNC], 1) << line;
  }
  // Two at the start and the end of a cluster, two where turns are taken: arrivals at the other CTA must not wait for additions to dq.
  if (image.stem == "backward_wide_sm90") {
    EXPECT_LE(test::instructions_of(image.bytes)[test::ERRBAR], 6) << line;
  }
  testing::Test::RecordProperty(image.stem + ": " + line, "registers " + std::to_string(image.facts.registers) + ", spilled bytes " +
                                                              std::to_string(image.facts.spill_bytes) + ", static shared bytes " +
                                                              std::to_string(image.facts.shared_bytes));
}

void expect_clean(const std::string& line, int spills_allowed = 0) {
  for (const auto& image : jit::compile(sources_of(problem_of(line)))) expect_clean(*image, line, spills_allowed);
}

constexpr const char* causal = " mask=\"kv_idx <= q_idx\"";

TEST_F(Sm90, PlainConfigurationsDoNotSpill) {
  for (const char* dtype : {"bf16", "f16"}) {
    for (const char* dims : {"d64", "d80", "d96", "d128"}) {
      for (const char* pass : {"forward ", "backward "}) {
        for (const char* mask : {"", causal}) {
          if (std::string(dtype) == "f16" && std::string(dims) != "d128") continue;
          expect_clean(std::string(pass) + dtype + " b2 h4 q8192:8192 " + dims + mask,
                       std::string(pass) == "forward " && std::string(dims) == "d80" ? 40 : 32);
        }
      }
    }
  }
  for (const char* dims : {"d192:128", "d192", "d256"}) {
    for (const char* pass : {"forward", "backward"}) {
      for (const char* mask : {"", causal}) expect_clean(std::string(pass) + " bf16 b2 h4 q2048:2048 " + dims + mask);
    }
  }
}

/// A branch in the loop over full tiles that is taken for divergent costs a WARPSYNC, shuffles and spills before the products of each tile: up to 12 %.
TEST_F(Sm90, LanesStayTogetherWithScores) {
  struct Score {
    const char* words;
    int warpsyncs;  ///< one at the end; more where a table is loaded
  };
  for (const char* dims : {"d64", "d128"}) {
    for (const char* mask : {"", causal}) {
      for (const auto& [words, warpsyncs] :
           {Score{"score=\"score * t[head]\" param=\"t: real[4]\"", 1},
            Score{"score=\"score + t[head] * (kv_idx - q_idx)\" param=\"t: real[4]\"", 1}, Score{"score=\"30 * tanh(score / 30)\"", 1},
            Score{"score=\"score + t[head, q_idx, kv_idx]\" param=\"t: real[4, 2048, 2048] bf16\"", 1},
            Score{"score=\"score + t[head, clamp(q_idx - kv_idx, -128, 128) + 128]\" param=\"t: real[4, 257]\"", 5}}) {
        const std::string line = std::string("forward bf16 b2 h4 q2048:2048 ") + dims + mask + ' ' + words;
        EXPECT_LE(test::instructions_of(jit::compile(sources_of(problem_of(line)).front())->bytes)[test::WARPSYNC], warpsyncs) << line;
      }
    }
  }
}

TEST_F(Sm90, UsesTheInstructionsOfTheArchitecture) {
  using namespace test;
  for (const char* dims : {"d64", "d80", "d128", "d256"}) {
    for (const char* pass : {"forward", "backward"}) {
      const problem::Problem p = problem_of(std::string(pass) + " bf16 b2 h4 q8192:8192 " + dims + causal);
      const bool backward = p.pass == Pass::backward;
      const std::size_t shared = backward ? sm90_backward_candidates(p, sm90_read_plan(p)).front().shared_bytes(p)
                                          : sm90_forward_candidates(p).front().shared_bytes(p);
      EXPECT_LE(shared, 232448u);
      RecordProperty(p.line(), "dynamic shared bytes " + std::to_string(shared));
      auto counts = instructions_of(jit::compile(sources_of(p).front())->bytes);
      EXPECT_GE(counts[HGMMA], backward ? 20 : 8) << p.line();
      EXPECT_GE(counts[UTMALDG], backward ? 4 : 3) << p.line();
      EXPECT_EQ(counts[USETMAXREG], 2) << p.line();
      EXPECT_EQ(counts[HMMA], 0) << p.line();
      EXPECT_EQ(counts[UBLKCP] >= 2 && counts[REDG] >= 4, backward) << p.line();  // statistics come, sums of dq go
    }
  }
}

TEST_F(Sm90, FewQueriesShareATile) {
  struct Case {
    const char* line;
    int packed_heads, consumers;
  };
  for (const auto& [line, packed_heads, consumers] :
       {Case{"b64 h32:8 q1:4096 d128", 4, 1},
        {"b2 h32:8 q16:4096 d64", 4, 1},
        {"b2 h32:8 q17:4096 d256", 4, 2},
        {"b2 h28:4 q1:4096 d192:128", 7, 1},
        {"b2 h8 q64:1000 d80", 1, 1},
        {"b1 h128:1 q127:900 d128", 128, 2},
        {"b2 h64:8 q1:4096 d64 sink=s param=\"s: real[64]\"", 8, 1},
        {"b2 h32:8 q7:4096 d128 mask=\"seqlen_q + kv_idx <= seqlen_kv + q_idx\"", 4, 1},
        {"b2 h32:8 q1:4096 d128 score=\"tanh(score / 30) * 30\"", 4, 1},
        {"b2 h32:8 q1:4096 d256 score=\"score + t[head] * kv_idx\" param=\"t: real[32]\"", 4, 1},
        {"b2 h16:1 q8:900 d64 score=\"score + t[head, q_idx, kv_idx]\" "
         "param=\"t: real[16, 8, 900]\"",
         16, 2},
        {"b2 h8 q3:900 d64 score=\"score + t[clamp(q_idx - kv_idx, -9, 0) + 9]\" "
         "param=\"t: real[10]\"",
         1, 1},
        {"b2 h8:2 q1:4096 d64 mask=\"kv_idx < n[batch]\" param=\"n: integer[2]\"", 4, 1}}) {
    const problem::Problem p = problem_of(std::string("forward bf16 ") + line);
    for (Sm90ForwardConfig config : sm90_forward_candidates(p)) {
      EXPECT_EQ(config.packed_heads, packed_heads) << line;
      EXPECT_EQ(config.consumers, consumers) << line;
      EXPECT_LE(config.shared_bytes(p), 232448u) << line;
      for (const bool split : {false, true}) {
        config.split_kv = split;
        std::vector<jit::KernelSource> sources{forward_sm90_source(p, config)};
        if (split) sources.push_back(merge_splits_sm90_source(p));
        for (jit::KernelSource& source : sources) source.arch = "sm_90a";
        for (const auto& image : jit::compile(sources)) expect_clean(*image, p.line(), p.has_mask() ? 104 : p.head_dim > 192 ? 32 : 0);
      }
    }
  }
  for (const char* line : {"b64 h32:8 q128:4096 d128", "b2 h8 q65:1000 d128", "b1 h129:1 q1:900 d128",
                           "b2 h4:2 q65:900 d64 score=\"score + 1.0 * to_real(kv_idx)\"", "b2 h4:2 q1:64 d64 dropout=0.1",
                           "b2 h4:2 q1:64 d64 mask=\"kv_idx < n[head]\" param=\"n: integer[4]\""})
    EXPECT_EQ(sm90_forward_candidates(problem_of(std::string("forward bf16 ") + line)).front().packed_heads, 1) << line;
}

TEST(Sm90Splits, AllMultiprocessorsRead) {
  const auto splits = [](const char* line) {
    const problem::Problem p = problem_of(std::string("forward bf16 ") + line);
    return sm90_kv_splits(p, sm90_forward_candidates(p).front(), 132).value;
  };
  EXPECT_GE(splits("b1 h32:8 q1:32768 d128"), 8);  // 8 tasks
  EXPECT_EQ(splits("b64 h32:8 q1:4096 d128"), 1);  // 512 tasks
  EXPECT_EQ(splits("b1 h32:8 q1:128 d128"), 1);    // one tile
  EXPECT_EQ(splits("b1 h8 q512:32768 d128"), 1);   // queries enough
  EXPECT_GE(splits("b1 h8:1 q1:131072 d128"), 64);
  EXPECT_LE(splits("b1 h8:1 q1:1000 d128"), 8);  // tiles
}

TEST_F(Sm90, FeaturesStayInFlight) {
  for (const char* pass : {"forward", "backward"}) {
    for (const char* features :
         {" mask=\"(kv_idx <= q_idx) & (q_idx - kv_idx < 100)\"", " mask=\"(kv_idx < 100) | (kv_idx <= q_idx)\"",
          " score=\"tanh(score / 30) * 30\" mask=\"kv_idx <= q_idx\"",
          " score=\"score + slope[head] * to_real(kv_idx - q_idx)\" param=\"slope: real[4]\"",
          " score=\"score + slope[head] * u[kv_idx]\" param=\"slope: real[4]\" param=\"u: real[1000]\"",
          " score=\"score + r[clamp(q_idx - kv_idx, -64, 64) + 64] * slope[head]\" param=\"r: real[129]\" param=\"slope: real[4]\""}) {
      for (const char* dims : {"d64", "d128"}) {
        expect_clean(std::string(pass) + " bf16 b2 h4:2 q1000:1000 " + dims + features, 96);
      }
    }
  }
}

TEST_F(Sm90, CappedScoresStayInRegisters) {
  for (const char* dims : {"d64", "d128", "d256"}) {
    for (const char* score : {" score=\"tanh(score / 30) * 30\"", " score=\"tanh(score / t[head]) * t[head]\" param=\"t: real[4]\""}) {
      for (const char* pass : {"forward", "backward"})
        expect_clean(std::string(pass) + " bf16 b2 h4:2 q1000:1000 " + dims + score + causal, 80);
    }
    const bool registers_last = std::string(dims) != "d128";  // terms are kept beside dk and dv, which leave no room for them
    expect_clean(std::string("backward bf16 b2 h4:2 q1000:1000 ") + dims + causal +
                     " score=\"tanh(score / t[head]) * t[head]\" param=\"t: real[4] grad\"",
                 registers_last ? 40 : 700);
  }
}

TEST_F(Sm90, SmallArgumentsOfTanhTakeNoSpecialFunction) {
  const auto counts_of = [](const std::string& dtype, const std::string& score) {
    const problem::Problem p = problem_of("forward " + dtype + " b2 h4 q8192:8192 d128 score=\"" + score + "\"" + causal);
    return test::instructions_of(jit::compile(sources_of(p).front())->bytes);
  };
  // Whole tiles inside a task, and in part the first ones of tasks, each in both ways: only one of them has two
  // special functions for each pair.
  auto light = counts_of("f16", "score * 2"), capped = counts_of("f16", "tanh(score / 30) * 30");
  constexpr int pairs = 128 / 2, whole = 1, copies = whole + 1;
  constexpr int epilogue = 10;  // its multiply-adds, at most: capped scores have one epilogue fewer (kEndsInStep)
  EXPECT_LE(capped[test::MUFU] - light[test::MUFU], copies * 2 * pairs + copies);
  EXPECT_GE(capped[test::FFMA] - light[test::FFMA], copies * pairs * (1 + 5 - 1) - epilogue);
  // bf16 goes on to the probability at once, each way with exponentials of its own: polynomials of 4 terms, for whole tiles also of 3
  // and 5.
  light = counts_of("bf16", "score * 2"), capped = counts_of("bf16", "tanh(score / 30) * 30");
  EXPECT_LE(capped[test::MUFU] - light[test::MUFU], copies * 2 * pairs + (whole * 3 + copies - whole) * pairs + 10 * copies);
  EXPECT_GE(capped[test::FFMA] - light[test::FFMA], copies * pairs + whole * pairs * (4 + 4 + 3));
}

/// As tile/tanh_ahead.cuh does it: tanh(raw * factor) / raw.
template <int terms>
float small_tanh_divided(float raw, float factor) {
  float coefficients[terms], power = factor;
  for (int i = 0; i < terms; ++i, power *= factor * factor) coefficients[i] = device::SmallTanh<terms>::kCoefficients[i] * power;
  float sum = coefficients[terms - 1];
  for (int i = terms - 2; i >= 0; --i) sum = std::fma(sum, raw * raw, coefficients[i]);
  return sum;
}

template <int terms>
void expect_exact_enough(double relative, double absolute) {
  using namespace device;
  for (const float factor : {1e-9f, 1e-6f, 2e-5f, 1e-4f, 0.0123f, 1.0f, 14.0f}) {
    const float largest = std::fmin(SmallTanh<terms>::kLimit / factor, kHighestSmallTanh);
    EXPECT_GE(largest, kLowestSmallTanh);
    for (int step = -2000; step <= 2000; ++step) {
      const float x = largest * static_cast<float>(step) / 2000;
      const double exact = std::tanh(static_cast<double>(x) * factor), found = small_tanh_divided<terms>(x, factor) * x;
      EXPECT_NEAR(found, exact, relative * std::abs(exact)) << x << " * " << factor;
      EXPECT_NEAR(found, exact, absolute);
    }
  }
}

TEST(Sm90Tanh, PolynomialsAreExactEnough) {
  expect_exact_enough<3>(5e-7, 6e-8);
  expect_exact_enough<4>(5e-7, 9e-8);
  expect_exact_enough<5>(3e-7, 1.6e-7);
}

TEST(Sm90Tanh, WhatGuessesGetWrongIsSmall) {
  using namespace device;
  using Tanh = SmallTanh<3>;
  const auto polynomial = [](double x) { return static_cast<double>(small_tanh_divided<3>(static_cast<float>(x), 1)) * x; };
  double worst = 0;
  for (double gain = Tanh::kLeastGain; gain < 2000; gain *= 1.05) {
    double weight = 1;
    for (double x = 0; x < 40; x += x < 1 ? 1e-3 : 0.1) {
      if (x > Tanh::kLimit) worst = std::fmax(worst, std::abs(std::exp2(-gain * polynomial(x)) - std::exp2(-gain * std::tanh(x))));
      const double above = std::exp2(gain * polynomial(x));
      ASSERT_GE(above, weight) << x;  // so that what is above the limit is found out
      weight = above;
    }
  }
  EXPECT_LE(worst, kGuessError);
  EXPECT_GE(worst, kGuessError / 4);  // the bound says something
}

TEST(Sm90Tanh, GradientOfACapIsAsExactAsThatOfTanh) {
  for (const float factor : {1e-6f, 0.00625f, 0.7f}) {
    const float limit = std::fmin(device::SmallTanh<5>::kLimit, device::kHighestSmallTanh * factor);
    for (double top = limit; top > 1e-6; top /= 2) {
      double found = 0, naive = 0;
      for (int step = 1; step <= 1000; ++step) {
        const float raw = static_cast<float>(top / static_cast<double>(factor) * (1 + step / 1000.0) / 2);
        const auto error = [&](float t) {  // of t - x (1 - t^2), as the emitted text has it
          const double x = static_cast<double>(raw) * static_cast<double>(factor), exact = std::tanh(x);
          const double off = static_cast<double>(t - (1 - t * t) * raw * factor) - (exact - x * (1 - exact * exact));
          return off * off;
        };
        found += error(small_tanh_divided<5>(raw, factor) * raw), naive += error(std::tanh(raw * factor));
      }
      EXPECT_LE(std::sqrt(found), 2.5 * std::sqrt(naive)) << top << " " << factor;
    }
  }
}

TEST_F(Sm90, GradientsOfParametersCompile) {
  for (const char* features :
       {" score=\"score * t[head]\" param=\"t: real[4] grad\"", " score=\"score + t[q_idx] * score\" param=\"t: real[1000] grad\"",
        " score=\"score + t[kv_idx]\" param=\"t: real[1000] grad\"",
        " score=\"score + t[kv_idx] * u[head]\" param=\"t: real[1000] grad\" param=\"u: real[4] grad\"",
        " score=\"score + t[head, clamp(q_idx - kv_idx, -64, 64) + 64]\" param=\"t: real[4, 129] grad\"",
        " score=\"score + t[batch, head, q_idx, kv_idx]\" param=\"t: real[2, 4, 1000, 1000] grad\""}) {
    expect_clean(std::string("backward bf16 b2 h4:2 q1000:1000 d64") + causal + features, 400);
    expect_clean(std::string("backward bf16 b2 h4:2 q1000:1000 d128") + causal + features, 480);  // what far tiles spill included
    expect_clean(std::string("backward bf16 b2 h4:2 q1000:1000 d256") + causal + features, 440);  // of elements loaded ahead
  }
}

/// Names of the kernels of a problem.
std::string kernels_of_line(const std::string& line) {
  std::string names;
  for (const jit::KernelSource& source : kernels_of(problem_of(line), "sm_90a", "")) names += source.stem + " ";
  return names;
}

TEST_F(Sm90, GradientsOfParametersTakeNoPortablePass) {
  for (const char* score : {"score * t[0]", "score + t[kv_idx]", "score + t[clamp(q_idx - kv_idx, -64, 64) + 64]",
                            "score + t[0] * to_real(q_idx - kv_idx)", "score * t[q_idx]", "tanh(score / t[0]) * t[0]"}) {
    const auto kernels = [&](const std::string& dims) {
      return kernels_of_line("backward bf16 b2 h4 q1000:1000 " + dims + causal + " score=\"" + score + "\" param=\"t: real[1000] grad\"");
    };
    for (const char* dims : {"d64", "d80", "d128", "d160", "d192:128", "d256"}) {
      EXPECT_EQ(kernels(dims).find("sm80"), std::string::npos) << dims << " " << score << ": " << kernels(dims);
    }
    // Above head dim 128 terms of pairs are collected apart; a factor of the score has none.
    const bool apart = kernels("d256").find("collect_sm90") != std::string::npos;
    EXPECT_EQ(apart, std::string(score) != "score * t[0]") << score;
    EXPECT_EQ(kernels("d128").find("collect_sm90"), std::string::npos) << score;
  }
}

TEST(Sm90Lines, AreAsManyAsSharedMemoryHasRoomFor) {
  std::string score = "score", params;
  for (int i = 0; i < 12; ++i) {
    score += base::join(" + exp(t", i, "[clamp(q_idx - kv_idx, -", 8 + i, ", ", 8 + i, ") + ", 8 + i, "])");
    params += base::join(" param=\"t", i, ": real[", 17 + 2 * i, "]\"");
  }
  for (const char* dims : {"d64", "d128", "d192", "d256"}) {
    for (const char* pass : {"forward", "backward"}) {
      const problem::Problem p = problem_of(base::join(pass, " bf16 b2 h4 q1000:1000 ", dims, " score=\"", score, "\"", params));
      const auto expect_room = [&](const auto& config) {
        EXPECT_FALSE(config.lines.diagonal.empty()) << pass << " " << dims;
        EXPECT_LE(config.shared_bytes(p), 232448) << pass << " " << dims;
      };
      if (p.pass == Pass::forward)
        expect_room(sm90_forward_candidates(p).front());
      else
        expect_room(sm90_backward_candidates(p, sm90_read_plan(p)).front());
    }
  }
}

TEST_F(Sm90, ReproducibleBackwardStaysInFlight) {
  for (const char* line : {"d64", "d128", "d128 mask=\"kv_idx <= q_idx\"", "d128 mask=\"(kv_idx <= q_idx) & (q_idx - kv_idx < 100)\"",
                           "d256 mask=\"kv_idx <= q_idx\""}) {
    expect_clean(std::string("backward bf16 b2 h4:2 q2048:2048 ") + line + " determinism=reproducible",
                 188);  // of the warp that keeps the turns
  }
}

TEST_F(Sm90, SharedElementsAreAddedWithoutSpills) {
  for (const char* dims : {"d64", "d128", "d72:40"}) {
    for (const char* mask : {"", causal, " mask=\"(kv_idx < 100) | (kv_idx <= q_idx)\""}) {
      const std::string line = std::string("backward bf16 b2 h4:2 q1000:1000 ") + dims + mask;
      for (const char* score : {" score=\"score + t[head, q_idx, kv_idx]\" param=\"t: real[4, 1000, 1000] grad\"",
                                " score=\"tanh(score * t[q_idx, kv_idx])\" param=\"t: real[1000, 1000] grad\""}) {
        const problem::Problem p = problem_of(line + score);
        ASSERT_EQ(gradient_storage(p)[0], GradientStorage::added);
        ASSERT_EQ(sm90_read_plan(p).of(Collector::pairs), std::vector{0});
        EXPECT_TRUE(read_facts(p)[0].covers);
        jit::KernelSource source = pairs_sm90_source(p, sm90_pairs_config(p), 0, true);
        source.arch = "sm_90a";
        expect_clean(*jit::compile(source), line + score, 56);  // of a slope for each pair under a mask program
      }
    }
  }
  const problem::Problem part =
      problem_of("backward bf16 b2 h4 q64 d64 score=\"score + t[q_idx, kv_idx + 1]\" param=\"t: real[64, 70] grad\"");
  EXPECT_FALSE(read_facts(part)[0].covers);
}

/// The kernels of a problem that read it for each pair.
std::vector<jit::KernelSource> sources_with_pairs(const problem::Problem& p) {
  std::vector<jit::KernelSource> sources{p.pass == Pass::forward
                                             ? forward_sm90_source(p, sm90_forward_candidates(p).front())
                                             : backward_sm90_source(p, sm90_backward_candidates(p, sm90_read_plan(p)).front())};
  if (p.pass == Pass::backward)
    for (const int read : sm90_read_plan(p).of(Collector::pairs)) sources.push_back(pairs_sm90_source(p, sm90_pairs_config(p), read, true));
  for (jit::KernelSource& source : sources) source.arch = "sm_90a";
  return sources;
}

TEST_F(Sm90, DenseReadsComeAsTiles) {
  using namespace test;
  const auto dense = [](const char* dtype, int length) {  // rows of 4098 elements are not aligned
    return base::join(" score=\"score + t[head, q_idx, kv_idx]\" param=\"t: real[4, 4096, ", length, "] ", dtype);
  };
  for (const auto& [dims, mask, pass, dtype] : {std::tuple{"d64", "", "forward", "bf16"},
                                                {"d64", "", "backward", "bf16"},
                                                {"d64", causal, "forward", "bf16"},
                                                {"d64", causal, "backward", "bf16"},
                                                {"d80", "", "forward", "bf16"},
                                                {"d80", causal, "backward", "bf16"},
                                                {"d128", causal, "forward", "bf16"},
                                                {"d128", "", "backward", "bf16"},
                                                {"d64", "", "forward", "f32"},
                                                {"d64", "", "backward", "f32"},
                                                {"d64", causal, "forward", "f32"},
                                                {"d64", causal, "backward", "f32"},
                                                {"d80", causal, "backward", "f32"},
                                                {"d128", causal, "forward", "f32"},
                                                {"d128", "", "backward", "f32"}}) {
    const std::string line = base::join(pass, " bf16 b2 h4:2 q4096:4096 ", dims, mask), grad = *pass == 'b' ? " grad=" : "";
    const auto with = [&, dtype = dtype](int length) {
      return problem_of(line + dense(dtype, length) + grad + (grad.empty() ? "" : dtype) + "\"");
    };
    const problem::Problem p = with(4096), loaded = with(4098);
    ASSERT_EQ(sm90_pair_tiles(p).size(), 1u) << line;
    EXPECT_TRUE(sm90_pair_tiles(loaded).empty());
    const auto ours = sources_with_pairs(p), theirs = sources_with_pairs(loaded);
    ASSERT_EQ(ours.size(), *pass == 'b' ? 2u : 1u);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const auto image = jit::compile(ours[i]);
      expect_clean(*image, p.line(), image->facts.registers == 128 ? 456 : 40);  // three warpgroups are short of registers
      auto counts = instructions_of(image->bytes), before = instructions_of(jit::compile(theirs[i])->bytes);
      if (std::string(dtype) == "bf16") {
        EXPECT_GE(counts[LDSM], 4) << line << image->stem;
      }
      EXPECT_LE(counts[LDG], 8) << line << image->stem;
      EXPECT_GE(before[LDG], counts[LDG] + 30) << line << image->stem;
      EXPECT_EQ(before[LDSM], 0);
    }
    if (p.pass == Pass::forward) {
      EXPECT_GT(sm90_forward_candidates(p).front().pair_stages, 0);
      EXPECT_LE(sm90_forward_candidates(p).front().shared_bytes(p), 232448u);
    } else {
      EXPECT_GT(sm90_backward_candidates(p, sm90_read_plan(p)).front().pair_stages, 0);
      EXPECT_LE(sm90_backward_candidates(p, sm90_read_plan(p)).front().shared_bytes(p), 232448u);
      EXPECT_GT(sm90_pairs_config(p).pair_stages, 0);
      EXPECT_LE(sm90_pairs_config(p).shared_bytes(p), 232448u);
    }
  }
}

TEST_F(Sm90, ManyKindsOfDenseReadsCompile) {
  for (const char* features : {" score=\"score * t[head, q_idx, kv_idx] + u[batch, 0, q_idx, kv_idx]\" param=\"t: real[4, 1000, 1000] f16 "
                               "grad\" param=\"u: real[2, 1, 1000, 1000] bf16 grad\"",
                               " score=\"tanh(score * t[q_idx, kv_idx])\" param=\"t: real[1000, 1000] bf16 grad\" mask=\"kv_idx <= q_idx\"",
                               " score=\"score + t[q_idx, kv_idx] + slope[head] * to_real(kv_idx - q_idx)\" param=\"t: real[1000, 1000] "
                               "f16 grad\" param=\"slope: real[4] grad\"",
                               " score=\"score + t[batch, head, q_idx, kv_idx]\" param=\"t: real[2, 4, 1000, 1000] bf16 grad\"",
                               " score=\"score + t[head // 2, q_idx, kv_idx]\" param=\"t: real[2, 1000, 1000] bf16\" dropout=0.1"}) {
    for (const char* dims : {"d64", "d128"}) {
      for (const char* pass : {"forward", "backward"}) {
        const problem::Problem p = problem_of(base::join(pass, " bf16 b2 h4:2 q1000:1000 ", dims, features));
        for (const auto& source : sources_with_pairs(p)) expect_clean(*jit::compile(source), p.line(), 464);
      }
    }
  }
}

/// Swin's bias: without the table in shared memory each pair gathers from L2.
TEST(Sm90Choice, ATableComesBeforeAStageOfThePairsThatIndexIt) {
  const problem::Problem p = problem_of(
      "forward bf16 b4 h16 q4096 d64 score=\"score + t[rel[q_idx, kv_idx], head]\" param=\"t: real[16129, 16]\" "
      "param=\"rel: integer[4096, 4096] integers(0, 16128)\"");
  const Sm90ForwardConfig config = sm90_forward_candidates(p).front();
  EXPECT_EQ(config.tables.size(), 1u);
  EXPECT_EQ(config.pair_stages, 1);
}

TEST(Sm90PairTiles, AreFoundWhereTheEngineCanReadThem) {
  const auto tiles = [](const std::string& read, const std::string& param, const char* dims = "d64", const char* rest = "") {
    return sm90_pair_tiles(
        problem_of(base::join("forward bf16 b2 h4 q1000:1000 ", dims, " score=\"score + ", read, "\" param=\"t: ", param, "\" ", rest)));
  };
  const std::vector<PairTile> found = tiles("t[0, head, q_idx, kv_idx]", "real[1, 4, 1000, 1000] bf16");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].row, 2);
  EXPECT_EQ(found[0].column, 3);
  EXPECT_EQ(found[0].rows, 1000);
  EXPECT_EQ(found[0].columns, 1000);
  EXPECT_EQ(found[0].others, std::vector<int>{1});  // a dimension of one element needs no place
  EXPECT_EQ(tiles("t[q_idx, head, kv_idx]", "real[1000, 4, 1000] f16").size(), 1u);
  EXPECT_EQ(tiles("t[q_idx + head, kv_idx + 8]", "real[1008, 1008] bf16").size(), 1u);
  EXPECT_EQ(tiles("t[q_idx, kv_idx]", "real[1000, 1024] bf16", "d64", "kv_offset=24").size(), 1u);
  EXPECT_TRUE(tiles("t[q_idx, kv_idx + 3]", "real[1000, 1008] bf16").empty());  // boxes would begin between pieces of 16 bytes
  EXPECT_TRUE(tiles("t[q_idx, kv_idx + head]", "real[1000, 1008] bf16").empty());
  EXPECT_TRUE(tiles("t[q_idx, kv_idx]", "real[1000, 1024] bf16", "d64", "kv_offset=13").empty());
  EXPECT_EQ(tiles("t[batch, head, q_idx, kv_idx] + t[0, 1, q_idx, kv_idx]", "real[2, 4, 1000, 1000] bf16").size(), 2u);
  const std::vector<PairTile> mixed =
      tiles("t[q_idx, kv_idx] * u[q_idx, kv_idx]", "real[1000, 1000]", "d64", "param=\"u: real[1000, 1000] bf16\"");
  ASSERT_EQ(mixed.size(), 1u);  // shared memory has no room for fp32 beside others
  EXPECT_EQ(mixed[0].element_bytes, 2);
  EXPECT_TRUE(tiles("t[q_idx, kv_idx]", "real[1000, 1001] bf16").empty());  // rows are not aligned
  EXPECT_EQ(tiles("t[q_idx, kv_idx]", "real[1000, 1000]").size(), 1u);
  EXPECT_EQ(tiles("t[q_idx, kv_idx + 4]", "real[1000, 1004]").size(), 1u);
  EXPECT_TRUE(tiles("t[q_idx, kv_idx + 2]", "real[1000, 1004]").empty());
  EXPECT_TRUE(tiles("t[q_idx, kv_idx]", "real[1000, 1002]").empty());
  const std::vector<PairTile> bytes = tiles("t[n[q_idx, kv_idx]]", "real[9]", "d64", "param=\"n: integer[1000, 1008] u8\"");
  ASSERT_EQ(bytes.size(), 1u);
  EXPECT_EQ(bytes[0].element_bytes, 1);
  EXPECT_TRUE(tiles("t[n[q_idx, kv_idx]]", "real[9]", "d64", "param=\"n: integer[1000, 1000] u8\"").empty());  // rows are not aligned
  EXPECT_TRUE(tiles("t[n[q_idx, kv_idx]]", "real[9]", "d64", "param=\"n: integer[1000, 1008] i8\"").empty());  // with a sign
  EXPECT_TRUE(sm90_pair_tiles(problem_of("backward bf16 b2 h4 q1000:1000 d64 score=\"score + t[n[q_idx, kv_idx]]\" param=\"t: real[9]\" "
                                         "param=\"n: integer[1000, 1008] u8\""))
                  .empty());                                                        // fragments whose rows are keys take no bytes
  EXPECT_TRUE(tiles("t[kv_idx, q_idx]", "real[1000, 1000] bf16").empty());          // keys are not side by side
  EXPECT_TRUE(tiles("t[q_idx + 8, kv_idx]", "real[1000, 1000] bf16").empty());      // an index is clamped
  EXPECT_TRUE(tiles("t[q_idx // 2, kv_idx]", "real[1000, 1000] bf16").empty());     // two queries share a row
  EXPECT_TRUE(tiles("t[q_idx, kv_idx]", "real[1000, 1000] bf16", "d192").empty());  // shared memory is full
}

TEST(Sm90PairTiles, NeedAnAddressOfSixteenBytes) {
  problem::Problem p =
      problem_of("forward bf16 b2 h4 q1000:1000 d64 score=\"score + t[q_idx, kv_idx]\" param=\"t: real[1000, 1000] bf16\"");
  EXPECT_EQ(refuses_sm90(p), std::nullopt);
  EXPECT_EQ(sm90_pair_tiles(p).size(), 1u);
  p.params[0].tensor.aligned = false;
  EXPECT_EQ(refuses_sm90(p), std::nullopt);
  EXPECT_TRUE(sm90_pair_tiles(p).empty());
  p.k.aligned = false;
  EXPECT_EQ(refuses_sm90(p), "k: its address is not a multiple of 16 bytes");
}

TEST(Sm90Lines, StraightOnesAreSteppedThrough) {
  const auto diagonals = [](const std::string& score) {  // of the forward pass, then of the backward pass
    const std::string line = " bf16 b2 h4 q1000:1000 d64 score=\"" + score + "\"";
    const bool reads = score.find("t[") != std::string::npos;
    const auto count = [](const std::string& text) { return std::to_string(sm90_line_values(problem_of(text)).diagonal.size()); };
    return count("forward" + line + (reads ? " param=\"t: real[4]\"" : "")) +
           count("backward" + line + (reads ? " param=\"t: real[4] grad\"" : ""));
  };
  EXPECT_EQ(diagonals("score + to_real(kv_idx - q_idx) * exp2(-8.0 * to_real(head + 1) / 4.0)"), "00");
  EXPECT_EQ(diagonals("score + t[head] * to_real(kv_idx - q_idx + 3)"), "00");  // the gradient's factor is straight, too
  EXPECT_EQ(diagonals("score + t[head] * -to_real(q_idx - kv_idx) / 7"), "00");
  EXPECT_EQ(diagonals("score + t[head] * abs(to_real(kv_idx - q_idx))"), "12");
  EXPECT_EQ(diagonals("score + t[head] * to_real(max(q_idx - kv_idx, 0))"), "12");
}

TEST_F(Sm90, LongScoresAreCalledByOtherKernels) {
  std::string score = "score";
  for (int i = 0; i < 5; ++i) score = "(sin(exp(-(" + score + "))) + tanh(" + score + ") - cos(" + score + "))";
  for (const char* pass : {"forward", "backward"}) {
    const problem::Problem p = problem_of(std::string(pass) + " bf16 b2 h4 q100:100 d64 score=\"" + score + "\"");
    EXPECT_TRUE(is_long(p));
    EXPECT_EQ(refuses_sm90(p), "the score is too long to stand beside wgmma for every pair");
    EXPECT_NE(emit_score(p).find("FOVEAL_CALLED real score_in_units"), std::string::npos);
  }
  const problem::Problem two = problem_of("forward bf16 b2 h4 q100:100 d64 score=\"score + sin(score) * cos(score)\"");
  EXPECT_FALSE(is_long(two));
  EXPECT_EQ(refuses_sm90(two), std::nullopt);
}

TEST(Sm90Mask, BandsAreFound) {
  const auto mask_of = [](const char* mask) {
    return sm90_mask(problem_of(std::string("forward bf16 b1 h1 q1000:1200 d64 mask=\"") + mask + "\""));
  };
  EXPECT_EQ(mask_of("kv_idx <= q_idx").tiles, device::TileSource::causal);
  EXPECT_EQ(mask_of("kv_idx <= q_idx").band.high, 0);
  EXPECT_EQ(mask_of("kv_idx < q_idx + 5").band.high, 4);
  EXPECT_EQ(mask_of("kv_idx <= q_idx + seqlen_kv - seqlen_q").band.high, 200);
  const Sm90Mask window = mask_of("(abs(q_idx - kv_idx) <= 64) & (kv_idx <= q_idx)");
  EXPECT_EQ(window.tiles, device::TileSource::band);
  EXPECT_EQ(window.band.low, -64);
  EXPECT_EQ(window.band.high, 0);
  EXPECT_EQ(mask_of("~(q_idx < kv_idx)").band.high, 0);
  EXPECT_EQ(mask_of("(kv_idx < 100) | (kv_idx <= q_idx)").tiles, device::TileSource::list);
  EXPECT_EQ(mask_of("kv_idx < 100").tiles, device::TileSource::list);
  EXPECT_EQ(mask_of("2 * kv_idx <= q_idx").tiles, device::TileSource::list);
  EXPECT_EQ(mask_of("kv_idx <= q_idx + 5000").tiles, device::TileSource::all);
}

TEST(Sm90Mask, BandsKeepWhatTheMaskKeeps) {
  for (const char* mask : {"kv_idx <= q_idx", "abs(q_idx - kv_idx) <= 7", "(q_idx - 3 <= kv_idx) & (kv_idx < q_idx + 9)",
                           "~(kv_idx > q_idx + 2)", "abs(kv_idx - q_idx - 4) < 6"}) {
    const problem::Problem p = problem_of(std::string("forward bf16 b1 h1 q40:50 d64 mask=\"") + mask + "\"");
    const auto band = mask::find_band(p.score->mask, p.seqlen_q, p.seqlen_kv);
    ASSERT_TRUE(band) << mask;
    const mask::BlockMask blocks =
        mask::classify(p.score->mask, {.seqlen_q = 40, .seqlen_kv = 50, .block_q = 1, .block_kv = 1}, 0, 0, scoring::ReadRanges());
    for (int q = 0; q < 40; ++q) {
      std::vector<bool> kept(50, false);
      for (auto run = blocks.row_begin[static_cast<std::size_t>(q)]; run < blocks.row_begin[static_cast<std::size_t>(q) + 1]; ++run) {
        for (int kv = blocks.runs[static_cast<std::size_t>(run)].begin; kv < blocks.runs[static_cast<std::size_t>(run)].end; ++kv)
          kept[static_cast<std::size_t>(kv)] = true;
      }
      for (int kv = 0; kv < 50; ++kv)
        EXPECT_EQ(kept[static_cast<std::size_t>(kv)], band->low <= kv - q && kv - q <= band->high) << mask << q << kv;
    }
  }
}

jit::KernelSource convert_source_of(const std::string& line) {
  for (const jit::KernelSource& source : sources_of(problem_of(line)))
    if (source.stem == "backward_convert_sm90") return source;
  ADD_FAILURE() << line;
  return {};
}

TEST_F(Sm90, ProgramsShareTheKernelThatKnowsRowsOnly) {
  const std::string shape = "backward bf16 b2 h4 q300 d128";
  const jit::KernelSource plain = convert_source_of(shape);
  for (const char* program : {" score=\"score + to_real(kv_idx - q_idx)\"", " score=\"score + t[head]\" param=\"t: real[4] grad\"",
                              " sink=s param=\"s: real[4]\""}) {
    const jit::KernelSource source = convert_source_of(shape + program);
    EXPECT_EQ(source.constants.text(), plain.constants.text()) << program;
    EXPECT_EQ(source.score, plain.score) << program;
  }
  EXPECT_NE(convert_source_of(shape + " score=\"score * t[head]\" param=\"t: real[4]\"").score, plain.score);  // what it does know
  EXPECT_NE(convert_source_of(shape + " mask=\"kv_idx <= q_idx\"").score, plain.score);  // where hidden keys may be infinite or NaN
}

TEST_F(Sm90, APlanForOneMoreLengthCompilesNothing) {
  for (const char* program : {"", " score=\"tanh(score / 30) * 30\""}) {
    const auto compile_for = [&](int length) {
      return jit::compile(kernels_of(problem_of("forward bf16 b1 h32:8 q1:" + std::to_string(length) + " d64" + program), "sm_90a", ""));
    };
    const auto first = compile_for(4000);
    const jit::Compilations before = jit::compilations();
    for (int length = 4001; length < 4064; ++length) EXPECT_EQ(compile_for(length), first) << length << program;
    EXPECT_EQ(jit::compilations().compiled, before.compiled);
    EXPECT_EQ(jit::compilations().read, before.read);  // nor is anything looked for on disk
  }
}

constexpr Sm90Mask causal_mask{device::TileSource::causal, {-(1 << 30), 0}};
constexpr Sm90Teams h200{132, 60 << 20};

double total_of(const Sm90Tasks& tasks) {
  return std::accumulate(tasks.row_cost.begin(), tasks.row_cost.end(), 0.0) * static_cast<double>(tasks.heads * tasks.batch);
}

TEST(Sm90Schedule, CausalTasksEvenOut) {
  for (const int length : {512, 2048, 4096, 16384}) {
    const Sm90Tasks tasks{.row_cost = sm90_row_cost(causal_mask, length, 128, length, 128, Sm90Walk::keys),
                          .heads = 8 * 16384 / length,
                          .batch = 1,
                          .head_bytes = length * 1024};
    EXPECT_LT(tasks.row_cost.front(), tasks.row_cost.back());
    for (const bool one_task_per_cta : {false, true}) {
      const Sm90ScheduleCosts costs{
          .spilling_cost = 0.06, .one_task_per_cta_from = one_task_per_cta ? 1 : Sm90ScheduleCosts::never, .share_of_l2 = 2.0 / 3};
      const Sm90Schedule schedule = sm90_schedule(tasks, costs, h200);
      EXPECT_EQ(schedule.dealing, one_task_per_cta ? Sm90Dealing::one_task_per_cta : Sm90Dealing::persistent);
      EXPECT_EQ(schedule.order.tasks, tasks.heads * static_cast<int>(tasks.row_cost.size()));
      EXPECT_EQ(schedule.teams, one_task_per_cta ? schedule.order.tasks : 132);
      EXPECT_EQ(schedule.order.serpentine, !one_task_per_cta);
      if (one_task_per_cta) {  // what stays in L2, whatever that leaves for a round
        EXPECT_LE(schedule.order.section_heads.value * tasks.head_bytes, 40 << 20) << length;
        EXPECT_LT(schedule.time, 1.02 * total_of(tasks) / 132 + 0.5) << length;
      } else {
        EXPECT_GE(schedule.order.section_heads.value * schedule.order.rows, 132) << length;
      }
    }
  }
}

/// One CTA each: whatever the number of heads and the length, the longest tasks of the last section begin early enough.
TEST(Sm90Schedule, TheLastSectionEvensOut) {
  for (const int heads : {12, 16, 32, 40})
    for (const int length : {3072, 4096, 5120, 6000, 8192, 10000, 12288, 20000}) {
      const Sm90Tasks tasks{.row_cost = sm90_row_cost(causal_mask, length, 128, length, 64, Sm90Walk::queries),
                            .heads = heads,
                            .batch = 1,
                            .head_bytes = length * 1024,
                            .first_row_first = true};
      const Sm90Schedule schedule = sm90_schedule(tasks, schedule_costs::backward, h200);
      ASSERT_EQ(schedule.dealing, Sm90Dealing::one_task_per_cta);
      EXPECT_LT(schedule.time, 1.1 * total_of(tasks) / 132) << heads << " heads, " << length;  // 1.45 where each section has as many heads
      // As the kernels count: each task once, heads of a section together.
      const device::TaskOrder& order = schedule.order;
      std::set<std::pair<int, int>> seen;
      for (int index = 0; index < order.tasks; ++index) {
        const int section = std::min(index / order.section_tasks.value, order.last_section);
        const int inside = index - section * order.section_tasks.value;
        const int together = section == order.last_section ? order.last_heads.value : order.section_heads.value;
        const int head = section * order.section_heads.value + inside % together;
        EXPECT_LT(head, heads);
        seen.emplace(head, inside / together);
      }
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(order.tasks));
    }
  // Powers of two keep what was measured: as many heads as stay in a third of L2.
  for (const int length : {4096, 8192, 16384}) {
    const Sm90Tasks tasks{.row_cost = sm90_row_cost(causal_mask, length, 128, length, 64, Sm90Walk::queries),
                          .heads = 16,
                          .batch = 1,
                          .head_bytes = length * 1024,
                          .first_row_first = true};
    const device::TaskOrder order = sm90_schedule(tasks, schedule_costs::backward, h200).order;
    EXPECT_EQ(order.section_heads.value, 16384 / length);
    EXPECT_EQ(order.last_heads.value, order.section_heads.value);
  }
}

TEST(Sm90Schedule, EvenAndShortTasksStayPersistent) {
  Sm90Tasks tasks{.row_cost = {30.0, 30.0}, .heads = 16, .batch = 2, .head_bytes = 1 << 20};
  const Sm90Schedule even = sm90_schedule(tasks, schedule_costs::backward, h200);
  EXPECT_EQ(even.dealing, Sm90Dealing::persistent);
  EXPECT_EQ(even.order.section_heads.value, 1);  // one head after the other
  EXPECT_EQ(even.order.serpentine, 1);
  tasks.row_cost = {10.0, 20.0};
  EXPECT_EQ(sm90_schedule(tasks, schedule_costs::backward, h200).dealing, Sm90Dealing::persistent);
  EXPECT_EQ(sm90_schedule(tasks, schedule_costs::backward_wide, h200).dealing, Sm90Dealing::one_task_per_cta);
  tasks.row_cost = {20.0, 30.0};
  EXPECT_EQ(sm90_schedule(tasks, schedule_costs::backward, h200).dealing, Sm90Dealing::one_task_per_cta);
  EXPECT_EQ(sm90_schedule(tasks, schedule_costs::backward_persistent, h200).dealing, Sm90Dealing::persistent);
}

/// A CTA for each task costs what it gains where rounds leave little idle: what was measured at head dim 128.
TEST(Sm90Schedule, OneTaskPerCtaIsForGridsThatIdleMuch) {
  const Sm90Mask mask{.tiles = device::TileSource::causal, .band = {-(std::int64_t{1} << 30), 0}};
  const auto dealing = [&](std::int64_t heads, std::int64_t heads_kv, std::int64_t seqlen) {
    const Sm90Tasks tasks{.row_cost = sm90_row_cost(mask, seqlen, 128, seqlen, 160, Sm90Walk::keys),
                          .heads = heads,
                          .batch = 1,
                          .head_bytes = seqlen * 512 * heads_kv / heads};
    return sm90_schedule(tasks, schedule_costs::forward_128, h200).dealing;
  };
  EXPECT_EQ(dealing(16, 16, 16384), Sm90Dealing::one_task_per_cta);
  EXPECT_EQ(dealing(16, 16, 32768), Sm90Dealing::one_task_per_cta);
  EXPECT_EQ(dealing(32, 32, 16384), Sm90Dealing::persistent);
  for (const std::int64_t seqlen : {16384, 32768, 65536}) EXPECT_EQ(dealing(32, 8, seqlen), Sm90Dealing::persistent);
}

TEST(Sm90Schedule, RowsThatWaitForEachOtherComeInOrder) {  // all CTAs run, whatever were quicker
  for (const double first : {3.0, 50.0}) {
    const Sm90Tasks tasks{.row_cost = {first, 3.0}, .heads = 16, .batch = 3, .head_bytes = 1 << 20, .first_row_first = true};
    const Sm90Schedule turns = sm90_schedule(tasks, schedule_costs::backward, h200, true);
    EXPECT_EQ(turns.dealing, Sm90Dealing::persistent_in_order);
    EXPECT_LE(turns.teams, 132);
    EXPECT_GE(turns.order.section_heads.value, 33);
    EXPECT_EQ(turns.order.serpentine, 0);
  }
}

TEST(Sm90Schedule, SaysWhoTakesWhichRowWhen) {
  for (const bool first_row_first : {false, true}) {
    for (const double one_task_per_cta_from : {1.0, Sm90ScheduleCosts::never}) {
      const std::int64_t splits = first_row_first ? 1 : 2, packed = first_row_first ? 1 : 4;
      Sm90Tasks tasks{.row_cost = {}, .heads = 6, .batch = 3, .head_bytes = 1 << 23, .first_row_first = first_row_first};
      for (const double cost : sm90_row_cost(causal_mask, 1000, 128, 1000, 128, first_row_first ? Sm90Walk::queries : Sm90Walk::keys))
        tasks.row_cost.insert(tasks.row_cost.end(), static_cast<std::size_t>(splits), cost);
      tasks.sequences_inside = one_task_per_cta_from == 1.0;
      const Sm90Schedule schedule =
          sm90_schedule(tasks, {.spilling_cost = 0.06, .one_task_per_cta_from = one_task_per_cta_from, .share_of_l2 = 0.5}, {10, 60 << 20});
      const TileSchedule list = sm90_tile_schedule(schedule, 1000, 128, packed, splits);
      EXPECT_EQ(list.teams, 10);
      std::map<std::array<std::int64_t, 3>, std::int64_t> seen;  // of batch, head, begin
      std::vector<std::int64_t> of_team(10);
      for (std::size_t i = 0; i < list.rows.size(); ++i) {
        const TileSchedule::Row& row = list.rows[i];
        EXPECT_EQ(row.task, static_cast<std::int64_t>(i));
        EXPECT_EQ(row.end, std::min<std::int64_t>(1000, row.begin + 128));
        EXPECT_EQ(row.heads, packed);
        ++seen[{row.batch, row.head, row.begin}];
        EXPECT_EQ(row.team < 0, one_task_per_cta_from == 1.0);
        if (row.team >= 0) ++of_team[static_cast<std::size_t>(row.team)];
      }
      EXPECT_EQ(seen.size(), 3u * 6u * 8u);
      for (const auto& [place, times] : seen) EXPECT_EQ(times, splits);
      EXPECT_EQ(list.rows.front().begin, first_row_first ? 0 : 7 * 128);  // the longest
      if (one_task_per_cta_from == 1.0) {
        EXPECT_NE(list.rows[0].batch, list.rows[1].batch);
      } else {
        EXPECT_NE(list.rows[0].head, list.rows[1].head);
        EXPECT_EQ(list.rows[10].team, 9);  // to and fro
        for (const std::int64_t count : of_team) EXPECT_NEAR(static_cast<double>(count), static_cast<double>(list.rows.size()) / 10, 1);
      }
    }
  }
}

TEST(Sm90Schedule, DivisorsDivide) {
  for (const int heads : {1, 3, 7, 24, 100, 4097}) {
    const Sm90Tasks tasks{.row_cost = {1.0, 1.0}, .heads = heads, .batch = 5, .head_bytes = 1};
    const device::Divisor d = sm90_schedule(tasks, schedule_costs::forward, h200).order.inside;
    for (const unsigned n : {0u, 1u, 6u, 7u, 23u, 24u, 99u, 100u, 4096u, 4097u, 123456789u, 2147483647u}) {
      const auto high = static_cast<unsigned>(std::uint64_t{n} * d.multiplier >> 32);
      EXPECT_EQ((high + n) >> d.shift, n / static_cast<unsigned>(heads)) << n << " / " << heads;
    }
  }
}

TEST(Sm90Schedule, RowsHavePartsUntilTasksEvenOut) {
  for (const int length : {128, 1000, 2048, 4096, 16384}) {
    const auto rows = sm90_row_tiles(causal_mask, length, 128, length, 128, Sm90Walk::keys);
    double tiles = 0;
    for (const Sm90TileRange& row : rows) tiles += static_cast<double>(row.end - row.begin);
    constexpr int heads = 16;
    const Sm90RowParts parts = sm90_schedule_row_parts(rows, {.row_cost = {}, .heads = heads, .batch = 1, .head_bytes = length * 2048},
                                                       schedule_costs::pairs, h200);
    EXPECT_EQ(parts.schedule.order.rows, parts.parts.value * static_cast<int>(rows.size()));
    EXPECT_EQ(parts.schedule.order.tasks, parts.schedule.order.rows * heads);
    EXPECT_LE(parts.parts.value, static_cast<int>(rows.size()));
    EXPECT_LT(parts.schedule.time, 1.25 * heads * tiles / h200.count + 1.2) << length;  // start of tasks, and of what spills
  }
  const auto rows = sm90_row_tiles(causal_mask, 4096, 128, 4096, 128, Sm90Walk::keys);
  const Sm90Tasks tasks{.row_cost = {}, .heads = 16, .batch = 1, .head_bytes = 4 * 2 * 8192 * 128};
  EXPECT_LT(sm90_schedule_row_parts(rows, tasks, schedule_costs::pairs, h200).schedule.time, 1.1 * 16 * 528 / 132);
}

}  // namespace
}  // namespace foveal::cuda
