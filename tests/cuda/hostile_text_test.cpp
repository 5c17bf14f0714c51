// Programs reach a compiler as text: no name and no number can put anything else into it, whatever the process's locale is.
#include <gtest/gtest.h>

#include <clocale>
#include <cmath>
#include <limits>
#include <locale>
#include <regex>

#include "cuda/jit/source.h"
#include "cuda/kernels_of.h"
#include "cuda/score/score_emit.h"
#include "foveal/error.h"
#include "foveal/foveal_c.h"
#include "foveal/score.h"
#include "problem/call.h"
#include "problems.h"

namespace foveal {
namespace {

using test::problem_of;

/// Everything that is compiled for a line, on both kinds of kernels.
std::string all_text(const std::string& line) {
  const problem::Problem p = problem_of(line);
  std::string text;
  for (const char* arch : {"sm_80", "sm_90a"})
    for (const cuda::jit::KernelSource& source : cuda::kernels_of(p, arch, "")) text += cuda::jit::assemble(source);
  return text;
}

std::string line_with(const std::string& name, const std::string& ids) {
  return "backward bf16 b1 h2 q64 d64 score=\"score * " + name + "[head] + " + name + "[0]\" mask=\"" + ids + "[q_idx] == " + ids +
         "[kv_idx]\" param=\"" + name + ": real[2] grad\" param=\"" + ids + ": integer[64]\"";
}

TEST(HostileText, NamesOfParametersAreNoPartOfAKernel) {
  const std::string plain = all_text(line_with("aa", "bb"));
  EXPECT_GT(plain.size(), 10000u);
  for (const char* name : {"int", "return", "real", "threadIdx", "__asm__", "__syncthreads", "defined", "v0", "table", "at", "fv_exp",
                           "kScale", "_", "system", "NULL", "template"})
    EXPECT_EQ(all_text(line_with(name, std::string(name) + "s")), plain) << name;
  EXPECT_EQ(all_text(line_with(std::string(5000, 'a'), "bb")), plain);
}

const std::vector<std::string> no_names = {"",
                                           "9a",
                                           "a b",
                                           "a-b",
                                           "a[0]",
                                           "a;",
                                           "a\nb",
                                           "a\rb",
                                           "a\tb",
                                           "a\\",
                                           "a\"b",
                                           "a'b",
                                           "a*/b",
                                           "//a",
                                           "#include",
                                           "a\n#include \"/etc/passwd\"\n",
                                           "a;}__device__ int x=system(1);{",
                                           "\xcf\x80",
                                           "a\xff",
                                           "$a",
                                           "a.b",
                                           "a::b",
                                           "a(0)",
                                           "a,b",
                                           "%s%n",
                                           std::string("a\0b", 3)};

TEST(HostileText, WhatIsNoIdentifierIsRefusedAtEveryDoor) {
  float numbers[4] = {};
  foveal_tensor tensor, table;
  const int64_t sizes[] = {1, 2, 1, 2}, extent[] = {4};
  ASSERT_EQ(foveal_contiguous(&tensor, numbers, FOVEAL_F32, 4, sizes), FOVEAL_OK);
  ASSERT_EQ(foveal_contiguous(&table, numbers, FOVEAL_F32, 1, extent), FOVEAL_OK);
  for (const std::string& name : no_names) {
    EXPECT_THROW(Param(name, {4}), Error) << name;
    EXPECT_THROW(parse_param(name + ": real[4]"), Error) << name;
    EXPECT_THROW(problem::parse_line("forward f32 b1 h1 q2 d2 param=\"" + name + ": real[4]\""), Error) << name;
    if (name.find('\0') != std::string::npos) continue;  // C's text ends there
    const std::string declared = name + ": real[4]";
    const foveal_param param{declared.c_str(), &table, nullptr};
    foveal_attention attention{};
    attention.struct_size = sizeof attention;
    foveal_call call{};
    call.struct_size = sizeof call, call.pass = FOVEAL_FORWARD, call.params = &param, call.param_count = 1;
    call.q = call.k = call.v = &tensor;
    float results[4];
    foveal_tensor out = tensor;
    out.data = results, call.out = &out;
    foveal_options options{};
    options.struct_size = sizeof options;
    EXPECT_EQ(foveal_run(&attention, &call, &options, nullptr), FOVEAL_INVALID_ARGUMENT) << name;
  }
}

TEST(HostileText, TextAfterAProgramIsRefused) {
  for (const char* program :
       {"score; system(1)", "score /* x */", "score // x\n; int y", "score }", "score \\\n + 1", "score # x", "score\n#define x",
        "\"score\"", "score + 'a'", "score + 0x7", "score + 1e", "score + 1f", "score + 1u", "score + 1e999999;", "score, 1"})
    EXPECT_THROW(parse(program, {}), Error) << program;
}

TEST(HostileText, NumbersOfAProgramAreNumbersOfTheText) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::regex literal("real\\((-?[0-9]+(\\.[0-9]+)?(e[-+][0-9]+)?)\\)");
  for (const double x :
       {0.5, -0.0, 5e-324, -2.2250738585072014e-308, 1.7976931348623157e308, 1e22, 1.0 / 3, -123456789.25, 9007199254740993.0}) {
    problem::Line line = problem::parse_line("forward f64 b1 h1 q64 d64");
    line.attention.score_mod = tanh(symbols::score) + sin(symbols::score) * Expr(x);
    const std::string text = cuda::emit_score(problem::problem_of(line, {DeviceKind::cuda, 0}));
    bool found = false;
    for (std::sregex_iterator match(text.begin(), text.end(), literal); match != std::sregex_iterator(); ++match) {
      const std::string digits = (*match)[1];
      const double read = std::strtod(digits.c_str(), nullptr);
      // A zero's sign is only one where its text is a real.
      found = found || (read == x && (x != 0 || !std::signbit(x) || digits == "-0.0"));
    }
    EXPECT_TRUE(found || x == 0) << x << "\n" << text;
  }
  EXPECT_THROW(Expr(std::nan("")), Error);
  for (const double x : {inf, -inf}) {
    problem::Line line = problem::parse_line("forward f64 b1 h1 q64 d64");
    line.attention.score_mod = where(symbols::q_idx % 7 == 3, symbols::score, Expr(x));  // less infinity: a mask
    const std::string text = cuda::emit_score(problem::problem_of(line, {DeviceKind::cuda, 0}));
    EXPECT_EQ(text.find("real(infinity())") != std::string::npos, x > 0) << text;
    EXPECT_FALSE(std::regex_search(text, std::regex("[^a-z_](nan|inf)[^a-z]"))) << text;
  }
  for (const std::int64_t x :
       {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(), std::int64_t{-2147483648}}) {
    problem::Line line = problem::parse_line("forward f64 b1 h1 q64 d64");
    line.attention.score_mod = where((symbols::q_idx ^ Expr(x)) < symbols::kv_idx, symbols::score, 0.0);
    const std::string text = cuda::emit_score(problem::problem_of(line, {DeviceKind::cuda, 0}));
    EXPECT_EQ(text.find("9223372036854775808"), std::string::npos) << "too large for a literal of C";
    EXPECT_NE(text.find(x == std::numeric_limits<std::int64_t>::min() ? "(-9223372036854775807ll - 1)" : std::to_string(x)),
              std::string::npos)
        << text;
  }
}

/// Numbers as some languages write them: 1.234,5.
class Grouped : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(HostileText, IsTheSameInEveryLocale) {
  const std::string line =
      "backward bf16 b1 h2 q4096:12345 d64 scale=0.12345 dropout=0.25 score=\"score * 0.5 + tanh(score / 1234567.5)\" "
      "param=\"t: real[4096]\" mask=\"kv_idx < 10000\"";
  const auto said = [&] { return all_text(line) + problem::to_string(problem::parse_line(line)) + problem::headline(problem_of(line)); };
  const std::string before = said();
  const std::locale cpp = std::locale::global(std::locale(std::locale::classic(), new Grouped));
  const std::string was = std::setlocale(LC_ALL, nullptr);
  for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "pl_PL.UTF-8"})
    if (std::setlocale(LC_ALL, name) != nullptr) break;  // of C, where one is installed
  const std::string after = said();
  std::setlocale(LC_ALL, was.c_str());
  std::locale::global(cpp);
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace foveal
