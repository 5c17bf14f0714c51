// The text of every operation compiles, in every element type and for both kinds of operands.
#include "cuda/score/score_emit.h"

#include <regex>

#include "cuda/device/score/key_steps.cuh"
#include "cuda/jit/compile.h"
#include "cuda/launch/backward_sm80.h"
#include "cuda/score/score_forms.h"
#include "nvrtc_here.h"
#include "problems.h"
#include "score/op_table.h"

namespace foveal::cuda {
namespace {

using scoring::Op;
using test::problem_of;

class ScoreEmit : public test::NeedsNvrtc {};

/// An operation applied to operands of its types, as a real.
std::string use_of(const scoring::OpRow& row, bool integers) {
  const std::string real[] = {"score", "(0.5 * score + 2)", "(score - 1)"};
  const std::string integer[] = {"q_idx", "(kv_idx % 9 + 1)", "head"};  // the second may divide, or be how far to shift
  const std::string boolean[] = {"(q_idx < kv_idx)", "(head == 0)", "(batch == 1)"};
  std::vector<std::string> operands;
  for (int a = 0; a < row.arity; ++a) {
    const auto at = static_cast<std::size_t>(a);
    const char kind = row.signature[at];
    operands.push_back(kind == 'b' ? boolean[at] : kind == 'i' || (kind != 'r' && integers) ? integer[at] : real[at]);
  }
  const std::string text(row.text);
  std::string call;
  if (row.op == Op::select) {
    call = "where(" + operands[0] + ", " + operands[1] + ", " + operands[2] + ")";
  } else if (row.arity == 1) {
    call = std::isalpha(static_cast<unsigned char>(text[0])) ? text + "(" + operands[0] + ")" : text + operands[0];
  } else {
    const bool named = std::isalpha(static_cast<unsigned char>(text[0]));
    call = named ? text + "(" + operands[0] + ", " + operands[1] + ")" : "(" + operands[0] + " " + text + " " + operands[1] + ")";
  }
  return "to_real(" + call + ")";
}

/// The last statement of an emitted function.
std::string result_of(const std::string& text, const std::string& function) {
  const std::size_t begin = text.find("return", text.find("{", text.find(" real " + function + "(")));
  return text.substr(begin, text.find(';', begin) - begin);
}

/// NaN becomes 0, as on CPUs: the device's own conversions of double and to 64 bits make it the least integer.
TEST(ScoreText, ConversionsToIntegersSayWhatNanBecomes) {
  for (const char* type : {"f32", "f64"})
    for (const char* integer : {"to_integer(t[kv_idx])", "min(max(to_integer(t[kv_idx]), 0), 9)", "to_int32(to_integer(t[kv_idx]))"}) {
      const std::string text = emit_score(
          problem_of(std::string("forward bf16 b1 h1 q64 d64 score=\"score + ") + integer + "\" param=\"t: real[64] " + type + "\""));
      EXPECT_NE(text.find("fv_truncated<"), std::string::npos) << text;
      EXPECT_FALSE(std::regex_search(text, std::regex("= (int|i64)\\((v0|w0|fv_load)"))) << text;
    }
}

TEST(ScoreUnits, OfASlopeLeaveTheLoopOnlyWhereAllHeadsOfAGroupShareThem) {
  const auto slope_unit = [](const std::string& heads, const std::string& score, const std::string& dtype = "bf16") {
    const std::string line = "backward " + dtype + " b2 " + heads + " q64 d64 score=\"" + score + "\" param=\"t: real[4] grad\"";
    return result_of(emit_score(problem_of(line)), "slope_unit");
  };
  EXPECT_NE(slope_unit("h4", "score * t[head]"), "return 1");
  EXPECT_EQ(slope_unit("h4:2", "score * t[head]"), "return 1");
  EXPECT_NE(slope_unit("h4:2", "score * t[batch]"), "return 1");
  EXPECT_EQ(slope_unit("h4", "score * t[head]", "f32"), "return 1");  // rounds as it is written
  EXPECT_EQ(slope_unit("h4", "score + t[head]"), slope_unit("h4:2", "score + t[head]"));
}

TEST(ScoreUnits, GradientsOfFactorsOfTheScoreFollowFromDk) {
  const auto follow = [](const std::string& heads, const std::string& score, const std::string& dtype = "bf16") {
    const problem::Problem p =
        problem_of("backward " + dtype + " b2 " + heads + " q64 d64 score=\"" + score + "\" param=\"t: real[64] grad\"" +
                   (score.find("u[") == std::string::npos ? "" : " param=\"u: real[64] grad\""));
    std::string found;
    for (const ReadFacts& read : read_facts(p)) found += read.follows_from_dk ? '1' : '0';
    return found;
  };
  EXPECT_EQ(follow("h4", "score * t[head]"), "1");
  EXPECT_EQ(follow("h4", "0.5 * score * exp(t[batch])"), "1");
  EXPECT_EQ(follow("h4", "score * t[head] * u[0]"), "11");
  EXPECT_EQ(follow("h4", "score * t[head] + u[kv_idx]"), "10");
  EXPECT_EQ(follow("h4:2", "score * t[head]"), "0");  // dk is the sum over both heads
  EXPECT_EQ(follow("h4:2", "score * t[head // 2]"), "0");
  EXPECT_EQ(follow("h4:2", "score * t[0]"), "1");
  EXPECT_EQ(follow("h4", "score * t[q_idx]"), "0");
  EXPECT_EQ(follow("h4", "(score + 1) * t[head]"), "0");
  EXPECT_EQ(follow("h4", "score * t[head] * to_real(kv_idx)"), "0");
  EXPECT_EQ(follow("h4", "tanh(score * t[head])"), "0");
}

TEST(ScoreUnits, SumsOfScoreAndOffsetAreFound) {
  const auto is_sum_of = [](const std::string& score) {
    const problem::Problem p = problem_of("forward bf16 b2 h4 q64 d64 score=\"" + score + "\" param=\"t: real[64]\"");
    return is_sum(ScoreForms(p, p.score->forward));
  };
  EXPECT_TRUE(is_sum_of("score + t[kv_idx]"));
  EXPECT_TRUE(is_sum_of("t[kv_idx] + score * t[head]"));
  EXPECT_FALSE(is_sum_of("score * t[kv_idx] + t[q_idx]"));
  EXPECT_FALSE(is_sum_of("score + t[q_idx] * score"));
  EXPECT_TRUE(is_sum_of("score + t[q_idx] * t[kv_idx] - t[kv_idx] * t[head]"));
  EXPECT_TRUE(is_sum_of("t[kv_idx] + (score * t[head] - t[q_idx])"));
  EXPECT_FALSE(is_sum_of("t[kv_idx] - score"));
  EXPECT_FALSE(is_sum_of("t[kv_idx] + abs(score - t[q_idx])"));
  const std::string square = "(t[q_idx] - t[kv_idx]) * (t[q_idx] - t[kv_idx])";
  EXPECT_TRUE(is_sum_of("score - " + square + " * t[head]"));
  EXPECT_FALSE(is_sum_of("score - (" + square + " + exp(" + square + ") + exp(t[q_idx] * t[kv_idx])) * t[head]"));  // long
}

/// A factor that is hoisted must not round what cancels, as time stamps and coordinates do.
TEST(ScoreUnits, DifferencesOfReadsAreTakenBeforeTheyAreScaled) {
  for (const std::string score : {"score + 0.01 * (t[q_idx] - t[kv_idx])", "score - 0.1 * ((t[q_idx] - t[kv_idx]) / 3 - 5)",
                                  "0.1 * (score + 3 * (t[q_idx] - t[kv_idx]))", "score + u[head] * (t[q_idx] - t[kv_idx])",
                                  "score - 0.7 * min(0.03 * (t[q_idx] - t[kv_idx]), 5)"})
    for (const std::string pass : {"forward", "backward"}) {
      const std::string trained = score.find("u[") == std::string::npos ? "" : " param=\"u: real[2] grad\"";
      const std::string text = emit_score(problem_of(pass + " bf16 b1 h2 q64 d64 score=\"" + score + "\" param=\"t: real[64]\"" + trained));
      const std::regex read("const real (v[0-9]+) = (fv_load<float>\\(args.param\\[0\\]|at\\.(walk|row))");
      int differences = 0;
      for (std::sregex_iterator at(text.begin(), text.end(), read), end; at != end; ++at) {
        const std::string name = (*at)[1];
        EXPECT_EQ(text.find("(" + name + " * "), std::string::npos) << text;
        differences += text.find("(" + name + " - v") != std::string::npos;
      }
      EXPECT_GT(differences, pass == "forward" ? 0 : -1) << text;
    }
}

TEST(ScoreUnits, IsOneWhereTheConstantsOfAFactorCancel) {
  const std::string text =
      emit_score(problem_of("backward bf16 b1 h2 q64 d64 score=\"score + t[q_idx, kv_idx % 7] * (0.25 * (3 * a[q_idx] + 4 * c[kv_idx]))\" "
                            "param=\"t: real[64, 7] grad\" param=\"a: real[64]\" param=\"c: real[64]\""));
  EXPECT_EQ(result_of(text, "read_unit"), "return 1");
}

TEST(ScoreUnits, OffsetsOfRowsComeFirst) {
  const std::string text = emit_score(
      problem_of("forward bf16 b2 h4 q64 d64 score=\"score + t[q_idx] * t[kv_idx] * t[head] - t[q_idx]\" param=\"t: real[64]\""));
  EXPECT_NE(text.find("kOffsets = 2;"), std::string::npos) << text;
  const std::string offsets = text.substr(text.find("kOffset[]"));
  EXPECT_LT(offsets.find(".has_row = false"), offsets.find(".has_row = true")) << text;
  const std::string units = text.substr(text.find(" real offset_unit("));
  EXPECT_LT(units.find("return -(1)"), units.find("if constexpr (i == 1)")) << units;
  const std::string one =
      emit_score(problem_of("backward bf16 b2 h4 q64 d64 score=\"score + t[q_idx] * t[kv_idx] - t[q_idx]\" param=\"t: real[64]\""));
  EXPECT_NE(one.find("kOffsets = 0;"), std::string::npos) << one;  // of a backward pass there is one at most
}

TEST(KeySteps, AreApartWhereNoCarryReachesThem) {
  int apart = 0;
  for (const int key_block : {64, 80, 112, 128, 160, 192})
    for (int block = 1; block <= 512; ++block) {
      if (!device::fv_steps_apart(key_block, block)) continue;
      ++apart;
      for (int tile = 0; tile < 9; ++tile)
        for (int rest = 0; rest < 8; rest += 2)  // of a thread's first column
          for (int step = 0; step < key_block; ++step) {
            if (step % 8 > 1) continue;
            const int kv = tile * key_block + rest;
            ASSERT_EQ((kv + step) / block, kv / block + step / block) << key_block << " " << block << " " << kv << " " << step;
            ASSERT_EQ((kv + step) % block, kv % block + step % block) << key_block << " " << block << " " << kv << " " << step;
          }
    }
  EXPECT_GT(apart, 50);
  EXPECT_TRUE(device::fv_steps_apart(128, 16, 256));
  EXPECT_FALSE(device::fv_steps_apart(128, 16, 96));
  EXPECT_FALSE(device::fv_steps_apart(0, 16));
}

TEST(KeySteps, AreFoundInIndicesOfTables) {
  const auto text_of = [](const std::string& index, const std::string& rest = "") {
    const problem::Problem p = problem_of("forward bf16 b1 h1 q512 d64 score=\"score + t[" + index + "]\" param=\"t: real[4096]\" " + rest);
    std::vector<ReadTable> tables = find_read_tables(p, {});
    EXPECT_EQ(tables.size(), 1u);
    for (ReadTable& table : tables) table.copies = 1;
    return emit_score(p, {.tables = tables});
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(text_of("q_idx % 64 + kv_idx // 32 * 64"), "fv_steps_apart(at.key_block, 32)"));
  EXPECT_TRUE(has(text_of("q_idx % 64 - kv_idx % 32 + 100"), "fv_steps_apart(at.key_block, 32)"));
  EXPECT_TRUE(has(text_of("q_idx % 64 + kv_idx // 16 % 8"), "fv_steps_apart(at.key_block, 16, 128)"));
  EXPECT_FALSE(has(text_of("q_idx % 64 + kv_idx // 12"), "fv_steps_apart"));        // keys of a thread may lie in two blocks
  EXPECT_FALSE(has(text_of("q_idx % 64 + (kv_idx + 3) // 32"), "fv_steps_apart"));  // blocks begin elsewhere
  EXPECT_FALSE(has(text_of("q_idx % 64 + kv_idx // 32", "kv_offset=64"), "fv_steps_apart"));
}

TEST(ReadTables, RowsOfAnEvenNumberArePadded) {
  const auto entries = [](const std::string& shape, const std::string& index) {
    const std::vector<ReadTable> tables =
        find_read_tables(problem_of("forward bf16 b1 h2 q512 d64 score=\"score + t[" + index + "]\" param=\"t: real[" + shape +
                                    "]\" param=\"n: integer[512] integers(0, 7)\""),
                         {});
    return tables.empty() ? 0 : tables[0].entries;
  };
  EXPECT_EQ(entries("8, 8", "n[q_idx], n[kv_idx]"), 8 * 9);
  EXPECT_EQ(entries("8, 9", "n[q_idx], n[kv_idx]"), 8 * 9);
  EXPECT_EQ(entries("8, 4, 8", "n[q_idx], kv_idx % 4, n[kv_idx]"), 8 * 4 * 9);
  EXPECT_EQ(entries("2, 16", "head, n[q_idx] + n[kv_idx]"), 16);  // one dimension differs between pairs
  EXPECT_EQ(entries("8, 8, 2", "n[q_idx], n[kv_idx], head"), 8 * 9);
}

TEST_F(ScoreEmit, EveryOperationCompiles) {
  std::string sum = "score";
  int used = 0;
  for (const scoring::OpRow& row : scoring::op_rows()) {
    if (row.arity == 0) continue;
    const bool real_form = !row.cuda_real.empty(), integer_form = !row.cuda_integer.empty();
    EXPECT_TRUE(real_form || integer_form) << row.text;
    if (real_form) sum += " + " + use_of(row, false), ++used;
    if (integer_form && row.op != Op::to_integer) sum += " + " + use_of(row, true), ++used;
  }
  EXPECT_GT(used, 40);
  for (const char* dtype : {"bf16", "f32", "f64"}) {
    const std::string line = std::string("backward ") + dtype + " b2 h2 q64 d16 score=\"" + sum + " * t[head]\" param=\"t: real[2] grad\"";
    jit::KernelSource source = delta_sm80_source(problem_of(line));  // the smallest kernel that carries the text
    source.arch = "sm_80";
    EXPECT_GT(jit::compile(source)->bytes.size(), 1000u) << dtype;
  }
}

TEST_F(ScoreEmit, EveryOperationCompilesOnIntegersOf64Bits) {
  std::string sum =
      "score + to_real(to_integer(score * 1e12)) + to_real(q_idx * 3000000000 - 5000000000) + to_real(n[kv_idx] == 99999999999)";
  for (const scoring::OpRow& row : scoring::op_rows()) {
    const bool of_integers = row.signature.find('n') != std::string_view::npos || row.signature.find('i') < row.signature.find('>') ||
                             row.signature.find('t') != std::string_view::npos;
    if (row.arity == 0 || !of_integers || row.cuda_integer.empty()) continue;
    std::string use = use_of(row, true);
    for (std::size_t at = 0; (at = use.find("q_idx", at)) != std::string::npos; at += 8) use.replace(at, 5, "n[q_idx]");
    sum += " + " + use;
  }
  const std::string line =
      "backward bf16 b2 h2 q64 d16 score=\"" + sum + " * t[head]\" param=\"t: real[2] grad\" param=\"n: integer[64] i64\"";
  const problem::Problem problem = problem_of(line);
  EXPECT_NE(emit_score(problem).find("i64 v"), std::string::npos);
  jit::KernelSource source = delta_sm80_source(problem);
  source.arch = "sm_80";
  EXPECT_GT(jit::compile(source)->bytes.size(), 1000u);
}

TEST_F(ScoreEmit, IntegersAreAsWideAsTheyNeed) {
  const std::string narrow = emit_score(problem_of("forward bf16 b1 h1 q1000 d16 score=\"score + to_real(q_idx * kv_idx)\""));
  EXPECT_EQ(narrow.find("i64 v"), std::string::npos) << narrow;
  const std::string wide =
      emit_score(problem_of("forward bf16 b1 h1 q1000 d16 mask=\"t[q_idx] == t[kv_idx]\" param=\"t: integer[1000] i64\""));
  EXPECT_NE(wide.find("i64 v"), std::string::npos) << wide;
  const std::string product = emit_score(problem_of("forward bf16 b1 h1 q1000 d16 score=\"score + to_real(q_idx * (kv_idx * 5000))\""));
  EXPECT_NE(product.find("i64 v"), std::string::npos) << product;
}

TEST_F(ScoreEmit, IndicesAreClampedOnlyWhereTheyCanLeave) {
  const std::string inside =
      emit_score(problem_of("forward bf16 b1 h1 q64 d16 score=\"score + t[q_idx - kv_idx + 63]\" param=\"t: real[127]\""));
  EXPECT_EQ(inside.find("fv_clamp"), std::string::npos) << inside;
  const std::string outside =
      emit_score(problem_of("forward bf16 b1 h1 q64 d16 score=\"score + t[q_idx - kv_idx + 63]\" param=\"t: real[100]\""));
  EXPECT_NE(outside.find("fv_clamp"), std::string::npos) << outside;
}

TEST_F(ScoreEmit, WhatDecidesAnIndexIsExact) {
  const std::string text = emit_score(problem_of(
      "forward bf16 b1 h1 q64 d16 score=\"tanh(score) + t[to_integer(log(to_real(max(q_idx - kv_idx, 1))))]\" param=\"t: real[9]\""));
  EXPECT_NE(text.find("fv_log<false>"), std::string::npos) << text;
  EXPECT_NE(text.find("fv_tanh(score.raw"), std::string::npos) << text;
}

TEST_F(ScoreEmit, AQuotientOfScoresThatIsRoundedIsExact) {
  const std::string text =
      emit_score(problem_of("backward bf16 b1 h1 q64 d16 score=\"score * floor(score / abs(score)) + score / abs(score)\""));
  EXPECT_NE(text.find("fv_divide<false>"), std::string::npos) << text;
  const std::string smooth = emit_score(problem_of("backward bf16 b1 h1 q64 d16 score=\"score / abs(score)\""));
  EXPECT_EQ(smooth.find("fv_divide<false>"), std::string::npos) << smooth;
}

/// Beside other types float64 is kept where it decides something, and only there: not in what is hoisted, loaded ahead or summed into the score.
TEST_F(ScoreEmit, WhatDecidesIsComputedInDouble) {
  const auto text = [](const std::string& dtype, const std::string& program) {
    problem::Problem problem =
        problem_of("forward " + dtype + " b1 h2 q200 d64 " + program + " param=\"t: real[200] f64\" param=\"u: real[200, 200] f64\"");
    Ahead ahead;
    ahead.pairs = true, ahead.lines = find_line_values(problem);
    return emit_score(problem, ahead);
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  const std::string mask = text("bf16", "mask=\"t[kv_idx] - 0.1 <= t[q_idx]\"");
  EXPECT_TRUE(has(mask, "fv_load_exact<double>") && (has(mask, "double(-0.1") || has(mask, "double(0.1"))) << mask;
  const std::string sum = text("bf16", "score=\"score - to_float32(t[q_idx] - t[kv_idx])\"");
  EXPECT_TRUE(has(sum, "const double w") && has(sum, "fv_to_float32(w")) << sum;
  EXPECT_TRUE(has(sum, "kWalkValues = 0")) << sum;
  const std::string pairs = text("f16", "score=\"score + where(u[q_idx, kv_idx] < 0.1, u[q_idx, kv_idx], 0.0)\"");
  EXPECT_TRUE(has(pairs, "kPairReads = 0") && has(pairs, "fv_load_exact<double>")) << pairs;
  const std::string plain = text("bf16", "score=\"score + t[kv_idx]\"");
  EXPECT_FALSE(has(plain, "const double w") || has(plain, "kWalkValues = 0")) << plain;
  EXPECT_FALSE(has(text("f64", "mask=\"t[kv_idx] <= t[q_idx]\""), "const double w"));
}

TEST_F(ScoreEmit, SmallWholePowersAreProducts) {
  const auto text = [](const char* exponent) {
    return emit_score(problem_of(std::string("backward bf16 b1 h1 q64 d16 score=\"score + cos(pow(kv_idx - head, ") + exponent + "))\""));
  };
  for (const char* exponent : {"2.0", "3.0", "4.0"}) EXPECT_EQ(text(exponent).find("fv_pow"), std::string::npos) << text(exponent);
  EXPECT_NE(text("3.5").find("fv_pow"), std::string::npos);
}

TEST_F(ScoreEmit, WhatDiffersBetweenHeadsStaysWithThePair) {
  const auto has = [](const char* line, bool several_heads, const char* fact) {
    const std::string text = emit_score(problem_of(line), {.tanh = true, .several_heads = several_heads});
    return text.find(std::string("constexpr bool ") + fact + " = true;") != std::string::npos;
  };
  const char* const slopes = "forward bf16 b1 h4:1 q1:64 d16 score=\"score + t[head] * kv_idx\" param=\"t: real[4]\"";
  const char* const caps = "forward bf16 b1 h4:1 q1:64 d16 score=\"tanh(score / t[head]) * t[head]\" param=\"t: real[4]\"";
  const char* const cap = "forward bf16 b1 h4:1 q1:64 d16 score=\"tanh(score / 30) * 30\"";
  for (const bool several : {false, true}) {
    EXPECT_NE(has(slopes, several, "kSumScore"), several);
    EXPECT_NE(has(caps, several, "kTanhAhead"), several);
    EXPECT_NE(has(caps, several, "kCappedScore"), several);
    EXPECT_TRUE(has(cap, several, "kTanhAhead")) << several;
    EXPECT_TRUE(has(cap, several, "kCappedScore")) << several;
  }
}

TEST_F(ScoreEmit, OneTanhOfTheScoreCanBeKnownAhead) {
  const auto ahead = [](const std::string& score, const std::string& dtype = "bf16") {
    const std::string text = emit_score(problem_of("forward " + dtype + " b1 h2 q64 d16 score=\"" + score + "\" param=\"t: real[64]\""),
                                        {.pairs = true, .tanh = true});
    const bool known = text.find("kTanhAhead = true") != std::string::npos;
    EXPECT_EQ(text.find("at.tanh") != std::string::npos, known) << text;
    EXPECT_EQ(text.find("fv_tanh") == std::string::npos, known) << text;
    return known;
  };
  EXPECT_TRUE(ahead("tanh(score / 20) * 20 + t[kv_idx]"));
  EXPECT_TRUE(ahead("tanh(score / t[head]) * t[head]"));
  EXPECT_TRUE(ahead("score + 2 * tanh(-score)"));
  EXPECT_FALSE(ahead("tanh(score + t[kv_idx])"));
  EXPECT_FALSE(ahead("tanh(score * t[kv_idx])"));
  EXPECT_FALSE(ahead("tanh(score) + tanh(2 * score)"));
  EXPECT_FALSE(ahead("tanh(score / 20) * 20 + t[0]", "f32"));
}

TEST_F(ScoreEmit, ATanhTimesWhatAllPairsShareIsACappedScore) {
  const auto capped = [](const std::string& score, const std::string& pass = "forward") {
    const std::string text =
        emit_score(problem_of(pass + " bf16 b1 h2 q64 d16 score=\"" + score + "\" param=\"t: real[64]\""), {.tanh = true});
    return text.find("kCappedScore = true") != std::string::npos;
  };
  EXPECT_TRUE(capped("tanh(score)"));
  EXPECT_TRUE(capped("tanh(score / 20) * 20"));
  EXPECT_TRUE(capped("tanh(score / t[head]) * t[head]"));
  EXPECT_FALSE(capped("tanh(score / 20) * -20"));
  EXPECT_FALSE(capped("tanh(score / 20) * 20 * t[kv_idx]"));
  EXPECT_FALSE(capped("tanh(score / 20) * 20 + score"));
  EXPECT_FALSE(capped("tanh(score / 20 + t[kv_idx]) * 20"));
  EXPECT_FALSE(capped("tanh(score / 20) * 20", "backward"));
}

TEST_F(ScoreEmit, FactorsOfAllPairsAreCollectedAndCancel) {
  const std::string text =
      emit_score(problem_of("backward bf16 b1 h2 q64 d16 score=\"tanh(score / t[head]) * t[head]\" param=\"t: real[2] grad\""),
                 {.pairs = true, .tanh = true});
  EXPECT_NE(text.find(" * score.raw) * (score.scale * fv_divide(real(1), v2)));"), std::string::npos) << text;
  EXPECT_EQ(text.find("v2 * "), std::string::npos) << text;
}

TEST_F(ScoreEmit, StepsWithinATileTimesTheirStrideFit32Bits) {
  const auto text_of = [](const std::string& index, const std::string& shape) {
    return emit_score(problem_of("forward bf16 b1 h2 q128:128 d16 score=\"score + t[" + index + "]\" param=\"t: real[" + shape + "]\""),
                      {.pairs = true});
  };
  const std::string narrow = "i64((at.kv_step) * (int(args.param[0].stride[0]) * 4))";
  EXPECT_NE(text_of("kv_idx, q_idx", "640, 1048576").find(narrow), std::string::npos) << text_of("kv_idx, q_idx", "640, 1048576");
  const std::string text = text_of("5 * kv_idx, q_idx", "640, 1048576");
  EXPECT_NE(text.find("i64(5 * at.kv_step) * (args.param[0].stride[0] * 4)"), std::string::npos) << text;
  EXPECT_NE(text_of("5 * kv_idx, q_idx", "640, 200000").find("i64((5 * at.kv_step) * (int("), std::string::npos);
}

TEST_F(ScoreEmit, StorageFollowsFromTheReads) {
  const auto storage = [](const std::string& score, const std::string& param) {
    return gradient_storage(problem_of("backward bf16 b2 h2 q64 d16 score=\"" + score + "\" param=\"t: " + param + " grad\""))[0];
  };
  EXPECT_EQ(storage("score + t[head]", "real[2]"), GradientStorage::zero);
  EXPECT_EQ(storage("score * t[head]", "real[2]"), GradientStorage::exact_sums);
  EXPECT_EQ(storage("score + t[batch, head, q_idx, kv_idx]", "real[2, 2, 64, 64]"), GradientStorage::stored);
  EXPECT_EQ(storage("score + t[head, q_idx, kv_idx]", "real[2, 64, 64]"), GradientStorage::added);
  EXPECT_EQ(storage("score + t[q_idx, kv_idx] + t[kv_idx, q_idx]", "real[64, 64]"), GradientStorage::added);
}

}  // namespace
}  // namespace foveal::cuda
