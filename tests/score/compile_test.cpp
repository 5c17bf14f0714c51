// The programs that compile() hands to backends: what users write, how each gradient is reduced, and the errors of wrong requests.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "foveal/error.h"
#include "foveal/masks.h"
#include "score/evaluate.h"
#include "score/program.h"

namespace foveal {
namespace {

using namespace symbols;
using scoring::compile;
using scoring::Request;
using scoring::ScoreProgram;

constexpr double inf = std::numeric_limits<double>::infinity();

ScoreProgram trained(const Expr& score_mod, const std::vector<Param>& params, bool row_constant_terms_matter = false,
                     const Expr& mask = {}) {
  std::vector<bool> wants;
  for (const Param& param : params) wants.push_back(param.type() == Type::real);
  return compile({.score_mod = score_mod,
                  .mask = mask,
                  .params = params,
                  .wants_gradient = wants,
                  .backward = true,
                  .row_constant_terms_matter = row_constant_terms_matter});
}

TEST(Compile, AbsentScoreAndMaskAreEmptyPrograms) {
  const ScoreProgram program = compile({.backward = true});
  EXPECT_TRUE(program.forward.empty());
  EXPECT_TRUE(program.mask.empty());
  EXPECT_EQ(program.text, "score_mod=score; mask=True");
  EXPECT_EQ(program.backward.code[static_cast<std::size_t>(program.dscore)].real, 1.0);
  EXPECT_EQ(program.backward.code[static_cast<std::size_t>(program.modified)].op, scoring::Op::score);
}

TEST(Compile, WhatSimplifiesAwayIsEmpty) {
  EXPECT_TRUE(compile({.score_mod = (score + 0) * 1}).forward.empty());
  EXPECT_TRUE(compile({.score_mod = where(q_idx == q_idx, score, 2.0)}).forward.empty());
  EXPECT_TRUE(compile({.mask = (q_idx >= kv_idx) | (q_idx < kv_idx)}).mask.empty());
  EXPECT_FALSE(compile({.mask = Expr(false)}).mask.empty());
}

TEST(Compile, CanonicalText) {
  EXPECT_EQ(to_string(causal()), "kv_idx <= q_idx");
  EXPECT_EQ(to_string(causal() & window(64)), "(kv_idx <= q_idx) & (q_idx <= kv_idx + 64)");
  const Param rel{"rel", {4, 17}};
  EXPECT_EQ(to_string(score + rel(head, clamp(kv_idx - q_idx, -8, 8) + 8)), "score + rel[head, clamp(kv_idx - q_idx, -8, 8) + 8]");
  EXPECT_EQ(to_string(softcap(30)), "30.0 * tanh(score / 30.0)");
  EXPECT_EQ(to_string(alibi(8)), "score + exp2(-head - 1) * (kv_idx - q_idx)");
  const ScoreProgram program = trained(score + rel(head, 3) * score, {rel});
  EXPECT_EQ(program.text, "score_mod=score * rel[head, 3] + score; mask=True; rel: real[4, 17] trained");
}

TEST(Compile, ElementsBecomeRealsOneByOne) {
  const Param a{"a", {64}, Type::integer};  // of more bits than a double has
  const Expr row = to_real(a(q_idx)), column = to_real(a(kv_idx));
  EXPECT_EQ(to_string(score + (row - column)), "score + (to_real(a[q_idx]) - a[kv_idx])");
  EXPECT_EQ(to_string(row < column), "to_real(a[q_idx]) < a[kv_idx]");
  EXPECT_EQ(to_string(row < to_real(kv_idx)), "a[q_idx] < kv_idx");
  EXPECT_EQ(to_string(score + max(row, column)), "score + max(a[q_idx], a[kv_idx])");
  EXPECT_EQ(to_string(score + (to_real(q_idx) - to_real(kv_idx))), "score + (q_idx - kv_idx)");
}

TEST(Compile, MinusInfinityIsAMask) {
  const Param b{"b", {64}};
  const ScoreProgram program =
      trained(where(q_idx >= kv_idx, where(kv_idx % 2 == 1, -inf, score + b(kv_idx)), -inf), {b}, false, window(9));
  EXPECT_EQ(program.text.substr(0, program.text.find("; b:")),
            "score_mod=score + b[kv_idx]; mask=(kv_idx <= q_idx) & (kv_idx % 2 != 1) & (q_idx <= kv_idx + 9)");
  EXPECT_EQ(compile({.score_mod = where(score > 0, score, -inf)}).mask.empty(), true);  // depends on the score: not a mask
}

TEST(Compile, DerivativeOfTheBranchThatIsTaken) {
  // log(0) in the branch not taken must not turn the gradient into NaN.
  const ScoreProgram program = trained(where(score > 0, log(score), 3 * score) + exp(where(q_idx < 1, log(score * 0 + q_idx), 0.0)), {});
  std::vector<scoring::Scalar> values(program.backward.code.size());
  class : public scoring::ParamReader {
    double read(std::int32_t, const std::int64_t*) const override { return 0; }
  } none;
  scoring::evaluate(program.backward, {.score = 0.0, .q_idx = 5}, none, values.data());
  EXPECT_EQ(values[static_cast<std::size_t>(program.dscore)].real, 3.0);
  scoring::evaluate(program.backward, {.score = 2.0, .q_idx = 5}, none, values.data());
  EXPECT_EQ(values[static_cast<std::size_t>(program.dscore)].real, 0.5);
}

/// d score_mod / d score.
double slope(const Expr& score_mod, const scoring::Point& point) {
  const ScoreProgram program = trained(score_mod, {});
  std::vector<scoring::Scalar> values(program.backward.code.size());
  class : public scoring::ParamReader {
    double read(std::int32_t, const std::int64_t*) const override { return 0; }
  } none;
  scoring::evaluate(program.backward, point, none, values.data());
  return values[static_cast<std::size_t>(program.dscore)].real;
}

/// Branches not taken that meet in a sum, a negation, an extreme or another branch, under a root whose slope is infinite there.
TEST(Compile, BranchesNotTakenVanishWhereverTheyMeet) {
  for (const char* text :
       {"sqrt(where(kv_idx == 1, score * score, 0.0) + where(kv_idx == 1, score, 0.0))", "sqrt(-where(kv_idx == 1, -score, 0.0))",
        "sqrt(max(where(kv_idx == 1, score, 0.0), 0.0))", "sqrt(where(kv_idx == 1, score, where(q_idx == 0, 0.0, score)))",
        "sqrt(2 * (where(kv_idx == 1, score, 0.0) - where(kv_idx == 1, 0.5 * score, 0.0)))",
        "tanh(exp(sqrt(where(kv_idx == 1, score, 0.0) + where(kv_idx == 1, score, 0.0))))",
        "rsqrt(where(kv_idx == 1, score, 0.0) + where(kv_idx == 1, score, 0.0)) * 0.5",
        "log(abs(where(kv_idx == 1, score, 0.0) + where(kv_idx == 1, score, 0.0)))"}) {
    EXPECT_EQ(slope(parse(text), {.score = 1.0, .kv_idx = 0}), 0) << text;
    const double step = 1e-5, taken = slope(parse(text), {.score = 1.0, .kv_idx = 1});
    EXPECT_TRUE(std::isfinite(taken) && taken != 0) << text << ": " << taken;
    const auto value = [&](double score) {
      const ScoreProgram program = compile({.score_mod = parse(text)});
      std::vector<scoring::Scalar> values(program.forward.code.size());
      class : public scoring::ParamReader {
        double read(std::int32_t, const std::int64_t*) const override { return 0; }
      } none;
      return scoring::evaluate(program.forward, {.score = score, .kv_idx = 1}, none, values.data());
    };
    EXPECT_NEAR(taken, (value(1 + step) - value(1 - step)) / (2 * step), 1e-7) << text;
  }
}

struct Reduced {
  const char* name;
  const char* score_mod;
  const char* kind;
  bool reads_head = false, reads_batch = false;
};

class Reductions : public testing::TestWithParam<Reduced> {};

TEST_P(Reductions, FollowFromTheIndices) {
  const std::vector<Param> params = {{"b", {64}},
                                     {"t", {4, 64, 64}},
                                     {"full", {2, 4, 64, 64}},
                                     {"c", {}},
                                     {"off", {64}, Type::integer},
                                     {"dist", {2, 64, 64}, Type::integer},
                                     {"bucket", {64}, Type::integer}};
  const Expr score_mod = parse(GetParam().score_mod, params);
  std::vector<bool> wants;
  for (const Param& param : params)
    wants.push_back(to_string(score_mod).find(param.name() + "[") != std::string::npos && param.type() == Type::real);
  const ScoreProgram program = compile({.score_mod = score_mod, .params = params, .wants_gradient = wants, .backward = true});
  ASSERT_EQ(program.reads.size(), 1u);
  EXPECT_STREQ(program.reads[0].kind(), GetParam().kind);
  EXPECT_EQ(program.reads[0].reads_head, GetParam().reads_head);
  EXPECT_EQ(program.reads[0].reads_batch, GetParam().reads_batch);
}

INSTANTIATE_TEST_SUITE_P(
    Compile, Reductions,
    testing::Values(Reduced{"relative_1d", "score + b[abs(q_idx - kv_idx)]", "diagonal"},
                    Reduced{"absolute_2d", "score + t[0, q_idx, kv_idx]", "element"},
                    Reduced{"head_specific", "score + t[head, q_idx, kv_idx]", "element", true},
                    Reduced{"batch_head", "score + full[batch, head, q_idx, kv_idx]", "element", true, true},
                    Reduced{"pair_bias_broadcast", "score + full[0, head, q_idx, kv_idx]", "element", true},
                    Reduced{"multiplicative", "score * b[q_idx]", "row"},
                    Reduced{"local_window", "score + b[clamp(q_idx - kv_idx + 8, 0, 16)]", "diagonal"},
                    Reduced{"global_tokens", "score + b[kv_idx]", "column"},
                    Reduced{"column_of_two_symbols", "score + t[head, kv_idx // 8, kv_idx % 8]", "column", true},
                    Reduced{"indirect", "score * b[off[q_idx]]", "row"}, Reduced{"indirect_columns", "score + b[off[kv_idx]]", "column"},
                    Reduced{"flipped", "score + t[0, kv_idx, q_idx]", "element"},
                    Reduced{"shifted", "score + t[0, q_idx - 1, kv_idx + 2]", "element"},
                    Reduced{"strided", "score + t[0, 2 * q_idx, kv_idx]", "scatter"},
                    Reduced{"same_place_twice", "score * t[0, q_idx, q_idx + kv_idx - kv_idx]", "row"},
                    Reduced{"gate", "score * sigmoid(b[head])", "uniform", true}, Reduced{"scalar", "score * c", "uniform"},
                    Reduced{"antidiagonal", "score + b[q_idx + kv_idx]", "scatter"},
                    Reduced{"t5_bucket", "score + t[head, 0, bucket[abs(q_idx - kv_idx)]]", "diagonal", true},
                    Reduced{"log_bucket",
                            "score + t[head, 1, where(q_idx < kv_idx, 8, 0) + min(to_integer(4 * log(1 + abs(kv_idx - q_idx))), 7)]",
                            "diagonal", true},
                    Reduced{"compared_difference", "score + b[where(q_idx <= kv_idx + 3, 1, 2)]", "diagonal"},
                    Reduced{"real_difference", "score + b[to_integer(0.5 * (to_real(q_idx) - to_real(kv_idx)))]", "diagonal"},
                    Reduced{"difference_and_head", "score + b[head * 8 + clamp(q_idx - kv_idx, 0, 7)]", "diagonal"},
                    Reduced{"not_quite_a_difference", "score + b[abs(q_idx - kv_idx) + q_idx]", "scatter"},
                    Reduced{"graphormer_spatial", "score + t[head, 0, dist[batch, q_idx, kv_idx]]", "scatter", true},
                    Reduced{"by_score", "score + b[to_integer(score)]", "scatter"}),
    [](const auto& info) { return info.param.name; });

TEST(Compile, TermsThatAreConstantAlongKvHaveNoGradient) {
  const Param b{"b", {64}}, c{"c", {4}};
  const auto zero = [&](const Expr& score_mod, bool matter = false) { return trained(score_mod, {b}, matter).params[0].gradient_is_zero; };
  EXPECT_TRUE(zero(score + b(head)));
  EXPECT_TRUE(zero(score + sigmoid(b(q_idx)) * 3));
  EXPECT_TRUE(zero(where(kv_idx <= q_idx, score + b(q_idx), -inf)));  // the condition is a mask
  EXPECT_FALSE(zero(score + b(head), true));
  EXPECT_FALSE(zero(score * b(head)));
  EXPECT_FALSE(zero(score + b(kv_idx)));
  EXPECT_FALSE(zero(score + b(q_idx) * kv_idx));
  EXPECT_FALSE(zero(where(kv_idx < 5, score + b(q_idx), score)));
  EXPECT_FALSE(zero(tanh(score + b(q_idx))));
  EXPECT_TRUE(zero(score + where(b(q_idx) > 0, 1.0, 2.0)));  // no derivative at all
  EXPECT_TRUE(trained(score + b(head), {b}).reads.empty());
}

TEST(Compile, TwoReadsOfOneParameter) {
  const Param b{"b", {64}};
  const ScoreProgram program = trained(score + b(q_idx) + b(kv_idx), {b});
  ASSERT_EQ(program.reads.size(), 1u);  // b[q_idx] is the same for a whole row: nothing reaches it
  EXPECT_EQ(program.reads[0].over, scoring::Varies::column);
  EXPECT_FALSE(program.params[0].gradient_is_zero);
  EXPECT_EQ(trained(score + b(q_idx) + b(kv_idx), {b}, true).reads.size(), 2u);
  EXPECT_EQ(trained(score * b(q_idx) + b(kv_idx) * b(q_idx), {b}).reads.size(), 2u);
  EXPECT_EQ(trained(score * b(kv_idx) + sin(b(kv_idx)), {b}).reads.size(), 1u);  // one element: one read, both contributions
}

TEST(Compile, BackwardHoldsEverythingItNamesInOrder) {
  const Param t{"t", {4, 64}}, g{"g", {4}};
  const ScoreProgram program = trained(softcap(20) * sigmoid(g(head)) + t(head, clamp(q_idx - kv_idx, 0, 63)), {t, g});
  ASSERT_EQ(program.reads.size(), 2u);
  std::vector<scoring::ValueId> expected{program.dscore};
  for (const scoring::TrainableRead& read : program.reads) {
    expected.push_back(read.factor);
    expected.insert(expected.end(), read.index.begin(), read.index.end());
    EXPECT_EQ(read.index.size(), program.params[static_cast<std::size_t>(read.param)].shape.size());
  }
  expected.push_back(program.modified);
  EXPECT_EQ(program.backward.outputs, expected);
  for (std::size_t id = 0; id < program.backward.code.size(); ++id) {
    const scoring::Instr& instr = program.backward.code[id];
    for (scoring::ValueId arg : instr.arg) EXPECT_LT(arg, static_cast<scoring::ValueId>(id));
    for (scoring::ValueId index : instr.index) EXPECT_LT(index, static_cast<scoring::ValueId>(id));
  }
  EXPECT_EQ(program.backward.depends.size(), program.backward.code.size());
}

TEST(Compile, DependsNamesTheSymbols) {
  const Param b{"b", {64}};
  const auto depends = [&](const Expr& score_mod) {
    const ScoreProgram program = compile({.score_mod = score_mod, .params = {b}});
    return program.forward.depends[static_cast<std::size_t>(program.forward.outputs[0])];
  };
  EXPECT_EQ(depends(b(q_idx) * 2), scoring::depends_q);
  EXPECT_EQ(depends(b(kv_idx) + head), scoring::depends_kv | scoring::depends_head);
  EXPECT_EQ(depends(score + seqlen_q), scoring::depends_score | scoring::depends_batch);
  EXPECT_EQ(depends(Expr(2.0)), 0);
}

/// The parts of a sum that are the same for a whole row or column come first, so that few operations are left for each pair.
TEST(Compile, SumsAreOrderedForHoisting) {
  const auto for_each_pair = [](const Expr& mask) {
    int count = 0;
    const ScoreProgram program = compile({.mask = mask});
    for (std::uint8_t depends : program.mask.depends) count += (depends & scoring::depends_q) && (depends & scoring::depends_kv);
    return count;
  };
  EXPECT_EQ(for_each_pair(causal()), 1);
  EXPECT_EQ(for_each_pair(causal() & window(64)), 3);
  EXPECT_EQ(for_each_pair(causal_bottom_right()), 1);
  EXPECT_EQ(for_each_pair((q_idx - kv_idx + 5) % 7 == 3), 3);
  EXPECT_EQ(for_each_pair((kv_idx - head - q_idx - 9 + batch) % 7 == 3), 3);
}

std::string message(const Request& request) {
  try {
    compile(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

void expect_error(const std::string& found, const std::string& part) { EXPECT_NE(found.find(part), std::string::npos) << found; }

TEST(CompileErrors, NameWhatIsWrong) {
  const Param b{"b", {64}}, other{"b", {32}}, ids{"ids", {64}, Type::integer};
  expect_error(message({.score_mod = q_idx < kv_idx}), "score_mod: the expression is boolean; expected real");
  expect_error(message({.mask = q_idx - kv_idx}), "mask: the expression is integer; expected boolean");
  expect_error(message({.mask = score > 0}), "mask: it reads score");
  expect_error(message({.score_mod = score + b(q_idx)}),
               "parameter b: read by the score or the mask but not bound; expected a binding of b: real[64]");
  expect_error(message({.score_mod = score + b(q_idx), .params = {other}}), "parameter b: two different ones of this name");
  expect_error(message({.score_mod = score + b(q_idx), .params = {b, b}}), "parameter b: bound twice");
  expect_error(message({.score_mod = score + ids(q_idx), .params = {ids}, .wants_gradient = {true}, .backward = true}),
               "parameter ids: a gradient is wanted but it is integer; expected a real parameter");
  expect_error(message({.score_mod = score, .params = {b}, .wants_gradient = {true}, .backward = true}),
               "parameter b: a gradient is wanted but neither score_mod nor mask reads it");
  expect_error(message({.params = {b}, .wants_gradient = {true, false}}), "wants_gradient: 2 entries; expected one for each of 1 params");
  expect_error(message({.params = {Param()}}), "params: entry 0 is an absent Param");
  expect_error(message({.score_mod = score + floor_div(q_idx, 0)}), "an integer divided by the constant 0");
  expect_error(message({.score_mod = score + q_idx % 0}), "an integer divided by the constant 0");
  for (const char* divisor : {"(kv_idx - kv_idx)", "(3 - 3)"})  // computed: as any other division by 0, so that what is printed is read
    for (const char* sign : {" % ", " // "}) EXPECT_EQ(to_string(parse(std::string("q_idx") + sign + divisor)), "0");
  for (const char* twice :
       {"q_idx // 4000000000 // 4000000000", "q_idx // 65536 // 65536"})  // whose product is no divisor of 32 bits, or of 64
    EXPECT_EQ(to_string(parse(twice)), twice);
  expect_error(message({.score_mod = score + Expr(std::int64_t{1} << 40) * (std::int64_t{1} << 40)}), "does not fit 64 bits");
  EXPECT_EQ(message({.score_mod = q_idx - kv_idx}), "accepted");  // an integer score is a real one
}

/// Sums that 64 bits do not hold were saturated, and decided comparisons: `q_idx < -9223372036854775807` was true beside `q_idx < 5`.
TEST(Compile, ComparisonsWithTheLargestIntegersAreRight) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const auto far = [](std::int64_t q, std::int64_t kv) { return kv - q; };
  struct Case {
    const char* text;
    std::function<bool(std::int64_t, std::int64_t)> keeps;
  };
  const Case cases[] = {
      {"(q_idx < -9223372036854775807) & (q_idx < 5)", [](auto, auto) { return false; }},
      {"(9223372036854775807 < q_idx) | (4 < q_idx)", [](auto q, auto) { return q > 4; }},
      {"~(q_idx <= 9223372036854775807) | (kv_idx < 3)", [](auto, auto kv) { return kv < 3; }},
      {"(9223372036854775807 < kv_idx - q_idx) & (3 < kv_idx - q_idx)", [](auto, auto) { return false; }},
      {"(kv_idx - q_idx < 9223372036854775807) & (kv_idx - q_idx < 4)", [&](auto q, auto kv) { return far(q, kv) < 4; }},
      {"(-9223372036854775807 <= kv_idx - q_idx) | (3 < q_idx)", [](auto, auto) { return true; }},
      {"abs(q_idx - 5) <= 9223372036854775807", [](auto, auto) { return true; }},
      {"abs(q_idx) - 9223372036854775807 < kv_idx - 9223372036854775807", [&](auto q, auto kv) { return q - most < kv - most; }},
  };
  class : public scoring::ParamReader {
    double read(std::int32_t, const std::int64_t*) const override { return 0; }
  } none;
  for (const Case& c : cases) {
    const scoring::ScoreProgram program = scoring::compile({.score_mod = where(parse(c.text), 1.0, 2.0)});
    std::vector<scoring::Scalar> values(program.forward.code.size());
    for (const std::int64_t q : {0, 4, 5, 100})
      for (const std::int64_t kv : {0, 3, 9, 104}) {
        const scoring::Point point{.score = 7, .q_idx = q, .kv_idx = kv, .seqlen_q = 128, .seqlen_kv = 128};
        EXPECT_EQ(scoring::evaluate(program.forward, point, none, values.data()), c.keeps(q, kv) ? 1.0 : 2.0)
            << c.text << " is " << to_string(parse(c.text)) << " at " << q << ", " << kv;
      }
  }
}

/// A number that may have 64 bits stays alone: what is added to it could overflow. Where two of them meet, a comparison stays as written.
TEST(Compile, ComparisonsAddNothingToLargeNumbers) {
  const Param limit{"limit", {8}, Type::integer};
  for (const auto& [text, canonical] : {std::pair{"kv_idx - 10 <= limit[q_idx]", "kv_idx - 10 <= limit[q_idx]"},
                                        {"kv_idx <= limit[q_idx] + 10", "kv_idx - 10 <= limit[q_idx]"},
                                        {"limit[q_idx] > -1 - kv_idx", "-kv_idx <= limit[q_idx]"},
                                        {"~(kv_idx - 10 <= limit[q_idx])", "limit[q_idx] <= kv_idx - 11"},
                                        {"q_idx - kv_idx == limit[0] + 3", "limit[0] == q_idx - 3 - kv_idx"},
                                        {"kv_idx < limit[batch]", "kv_idx < limit[batch]"},
                                        {"limit[q_idx] - limit[kv_idx] == 0", "limit[q_idx] == limit[kv_idx]"},
                                        {"limit[q_idx] - 1 <= limit[kv_idx]", "limit[q_idx] - 1 <= limit[kv_idx]"},
                                        {"~(limit[q_idx] - 1 <= limit[kv_idx])", "limit[kv_idx] < limit[q_idx] - 1"},
                                        {"abs(limit[q_idx] - limit[kv_idx]) < 3", "abs(limit[q_idx] - limit[kv_idx]) <= 2"},
                                        {"abs(limit[q_idx]) < 3", "(limit[q_idx] <= 2) & (-2 <= limit[q_idx])"},
                                        {"limit[q_idx] % 8 <= kv_idx - 3", "limit[q_idx] % 8 + 3 <= kv_idx"},
                                        {"(limit[q_idx] - 1) // 4 == 0", "(limit[q_idx] - 1) // 4 == 0"},
                                        {"(q_idx - 1) // 9223372036854775807 == 0", "(q_idx - 1) // 9223372036854775807 == 0"}}) {
    EXPECT_EQ(to_string(parse(text, {limit})), canonical) << text;
    EXPECT_EQ(to_string(parse(canonical, {limit})), canonical);
  }
}

TEST(Compile, SumsOfRealsStayRealsWhereIntegersMayOverflow) {
  const Param a{"a", {1}, Type::integer};
  for (const auto& [text, canonical] : {std::pair{"to_real(a[0]) + to_real(a[0])", "2.0 * a[0]"},
                                        {"to_real(a[0]) - 1.0", "a[0] - 1.0"},
                                        {"-to_real(a[0])", "-to_real(a[0])"},
                                        {"abs(to_real(a[0]))", "abs(to_real(a[0]))"},
                                        {"to_real(kv_idx) - to_real(q_idx)", "to_real(kv_idx - q_idx)"},
                                        {"-to_real(q_idx)", "to_real(-q_idx)"},
                                        {"to_integer(5e18) + 0 * q_idx", "5000000000000000000"},
                                        {"to_integer(1e30) + 0 * q_idx", "9223372036854775807"}})
    EXPECT_EQ(to_string(parse(text, {a})), canonical) << text;
}

/// Each level of abs made two comparisons of the one below.
TEST(Compile, NestedAbsStaysSmall) {
  Expr x = q_idx - kv_idx;
  for (int i = 1; i <= 40; ++i) x = abs(x) - i;
  EXPECT_LT(scoring::compile({.mask = x <= 5}).mask.size(), 150);
}

/// Doubles, which tell whether a result leaves 64 bits, know such operands by their first bits alone.
TEST(Compile, BitsOfTheLargestIntegersAreExact) {
  for (const auto& [text, value] : {std::pair{"9223372036854775807 | 1", "9223372036854775807"},
                                    {"~(-9223372036854775807 - 1)", "9223372036854775807"},
                                    {"4611686018427387903 & 2305843009213693952", "2305843009213693952"},
                                    {"4611686018427387903 % 2305843009213693952", "2305843009213693951"},
                                    {"-9223372036854775807 % 3", "2"},
                                    {"9223372036854775807 % -76", "-21"},
                                    {"9223372036854775807 >> 62", "1"},
                                    {"0 >> 9223372036854775807", "0"},
                                    {"9223372036854775807 ^ 9223372036854775806", "1"}})
    EXPECT_EQ(to_string(parse(text)), value) << text;
  EXPECT_THROW(to_string(parse("9223372036854775807 + 1")), Error);
  EXPECT_THROW(to_string(parse("9223372036854775807 << 1")), Error);
}

}  // namespace
}  // namespace foveal
