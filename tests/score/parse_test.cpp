// The text form: what it means, that printing and parsing agree, and that every error points at its place.
#include <gtest/gtest.h>
#include <pthread.h>

#include <cctype>
#include <clocale>
#include <cstdlib>

#include "foveal/error.h"
#include "foveal/masks.h"
#include "foveal/score.h"

namespace foveal {
namespace {

using namespace symbols;

const std::vector<Param>& params() {
  static const std::vector<Param> all = {{"rel", {4, 17}},
                                         {"b", {64}},
                                         {"grid", {8, 8}},
                                         {"scale", {}},
                                         {"ids", {64}, Type::integer},
                                         {"lengths", {2}, Type::integer},
                                         {"keep", {64}, Type::boolean}};
  return all;
}

std::string canonical(std::string_view text) { return to_string(parse(text, params())); }

struct Spelling {
  const char* text;
  const char* canonical;
};

/// By which a failure names it.
void PrintTo(const Spelling& spelling, std::ostream* out) { *out << spelling.text; }

class Parse : public testing::TestWithParam<Spelling> {};

TEST_P(Parse, GivesTheCanonicalText) {
  EXPECT_EQ(canonical(GetParam().text), GetParam().canonical);
  EXPECT_EQ(canonical(GetParam().canonical), GetParam().canonical);
}

INSTANTIATE_TEST_SUITE_P(
    Spellings, Parse,
    testing::Values(
        Spelling{"score", "score"}, Spelling{"2*score", "2.0 * score"}, Spelling{"score*2", "2.0 * score"}, Spelling{"score+0", "score"},
        Spelling{"score + rel[head, clamp(kv_idx - q_idx, -8, 8) + 8]", "score + rel[head, clamp(kv_idx - q_idx, -8, 8) + 8]"},
        Spelling{"rel[head][8] + score", "score + rel[head, 8]"}, Spelling{"score + rel(head, 3)", "score + rel[head, 3]"},
        Spelling{"score * scale", "score * scale[]"}, Spelling{"score * scale[]", "score * scale[]"},
        Spelling{"score * scale()", "score * scale[]"}, Spelling{"q_idx >= kv_idx", "kv_idx <= q_idx"},
        Spelling{"not q_idx < kv_idx", "kv_idx <= q_idx"}, Spelling{"q_idx - kv_idx >= 0", "kv_idx <= q_idx"},
        Spelling{"causal() & window(64)", "(kv_idx <= q_idx) & (q_idx <= kv_idx + 64)"}, Spelling{"causal", "kv_idx <= q_idx"},
        Spelling{"causal and window(8 * 8)", "(kv_idx <= q_idx) & (q_idx <= kv_idx + 64)"},
        Spelling{"0 <= q_idx - kv_idx <= 64", "(kv_idx <= q_idx) & (q_idx <= kv_idx + 64)"},
        Spelling{"kv_idx < 8 or kv_idx <= q_idx", "(kv_idx <= q_idx) | (kv_idx <= 7)"},
        Spelling{"document(ids)", "ids[q_idx] == ids[kv_idx]"},

        Spelling{"~keep[q_idx]", "~keep[q_idx]"}, Spelling{"keep[q_idx] == keep[kv_idx]", "~(keep[q_idx] ^ keep[kv_idx])"},
        Spelling{"score if q_idx >= kv_idx else -inf", "where(kv_idx <= q_idx, score, -inf)"},
        Spelling{"score if batch == 0 else 2 * score if batch == 1 else 0",
                 "where(batch == 0, score, where(batch == 1, 2.0 * score, 0.0))"},
        Spelling{"score + (q_idx - kv_idx)", "score + (q_idx - kv_idx)"}, Spelling{"score + q_idx - kv_idx", "score + q_idx - kv_idx"},
        Spelling{"-score ** 2", "-(score * score)"}, Spelling{"score ** 3", "pow(score, 3.0)"}, Spelling{"2 ** -1 * score", "0.5 * score"},
        Spelling{"q_idx // 8 % 2 == 1", "q_idx // 8 % 2 == 1"}, Spelling{"7 // -2 == q_idx", "q_idx == -4"},
        Spelling{"-7 % 3 == q_idx", "q_idx == 2"}, Spelling{"score - 1.5", "score - 1.5"}, Spelling{"1e-3 * score", "0.001 * score"},
        Spelling{"score / 30", "score / 30.0"}, Spelling{"score / 4", "0.25 * score"},
        Spelling{"abs(kv_idx - q_idx) % 2 == 0", "abs(q_idx - kv_idx) % 2 == 0"}, Spelling{"softcap(30)", "30.0 * tanh(score / 30.0)"},
        Spelling{"score + to_real(q_idx) / 7", "score + q_idx / 7.0"},
        Spelling{"score + q_idx / (1 + kv_idx)", "score + q_idx / (kv_idx + 1)"}, Spelling{"True", "True"},
        Spelling{"False or True", "True"}, Spelling{"(q_idx+1)*2-2*q_idx == 2", "True"}, Spelling{"min(score, 3)", "min(score, 3.0)"},
        Spelling{"q_idx & -9223372036854775808", "q_idx & -9223372036854775808"}, Spelling{"score +\n  b[q_idx]", "score + b[q_idx]"}));

struct Wrong {
  const char* text;
  std::size_t column;  ///< of the caret, from 1, in its line
  const char* says;
};

/// By which a failure names it.
void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.text; }

class ParseError : public testing::TestWithParam<Wrong> {};

TEST_P(ParseError, PointsAtThePlace) {
  const Wrong& wrong = GetParam();
  try {
    parse(wrong.text, params());
    FAIL() << "accepted: " << wrong.text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    const std::string message = error.what();
    EXPECT_NE(message.find(wrong.says), std::string::npos) << message;
    const std::size_t caret_line = message.rfind('\n');
    ASSERT_NE(caret_line, std::string::npos) << message;
    EXPECT_EQ(message.size() - 1 - caret_line - 2, wrong.column) << message;  // two blanks of indent, then the caret under its column
    EXPECT_EQ(message.back(), '^');
  }
}

INSTANTIATE_TEST_SUITE_P(
    Errors, ParseError,
    testing::Values(Wrong{"", 1, "expected a value"}, Wrong{"score +", 8, "the end of the text"}, Wrong{"score + )", 9, "expected a value"},
                    Wrong{"score score", 7, "expected an operator or the end"}, Wrong{"foo + 1", 1, "unknown name \"foo\""},
                    Wrong{"score + b[q_idx", 16, "to close the index of b"},
                    Wrong{"score + b[q_idx, 1]", 9, "read with 2 indices; expected 1"}, Wrong{"score + rel[head]", 9, "expected 2"},
                    Wrong{"score + b[score]", 9, "index 0 is real"}, Wrong{"score & 1", 7, "operator &"}, Wrong{"~score", 1, "operator ~"},
                    Wrong{"not q_idx", 1, "the operand is integer"}, Wrong{"where(q_idx, 1, 2)", 1, "the condition is integer"},
                    Wrong{"exp(score, 2)", 1, "2 arguments; expected 1"}, Wrong{"exp score", 5, "after the function exp"},
                    Wrong{"window(q_idx)", 8, "not constant"}, Wrong{"window()", 1, "expected window(w)"},
                    Wrong{"window(-1)", 1, "w is -1"}, Wrong{"window(1.5)", 1, "expected an integer"},
                    Wrong{"document(8)", 1, "expected document(ids)"}, Wrong{"document(b)", 1, "must be an integer Param"},
                    Wrong{"score if causal", 16, "expected \"else\""}, Wrong{"99999999999999999999 + q_idx", 1, "does not fit 64 bits"},
                    Wrong{"q_idx - 9223372036854775808", 9, "does not fit 64 bits"},
                    Wrong{"-9223372036854775808 ** 2 + q_idx", 2, "does not fit 64 bits"}, Wrong{"1e999 * score", 1, "out of range"},
                    Wrong{"score @ 2", 7, "expected an operator"}, Wrong{"score $ 2", 7, "expected an operator"},
                    Wrong{"score +\n  b[q_idx, 1]", 3, "line 2"}, Wrong{"q_idx // 0 + window(4 % 0)", 21, "divided by the constant 0"},
                    Wrong{"_1 + score", 1, "unknown name"}, Wrong{"_1 = score; _2", 13, "unknown name"},
                    Wrong{"score = 1", 7, "expected an operator"}));

TEST(ParseLimits, HostileTextIsRefused) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto repeated = [](const std::string& piece, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += piece;
    return text;
  };
  for (const char* piece : {"(", "-", "~", "not ", "exp(", "where(", "2 ** ", "True if True else ", "[", "score if "}) {
    EXPECT_NE(message(repeated(piece, 100000)).find("expression"), std::string::npos) << piece;
  }
  EXPECT_NE(message(repeated("(", 1000) + "score" + repeated(")", 1000)).find("nested deeper than 200"), std::string::npos);
  EXPECT_NE(message(std::string(2u << 20, ' ')).find("expected at most"), std::string::npos);
  EXPECT_NE(message(std::string("score \0 x", 9)).find("column 7"), std::string::npos);
  EXPECT_LT(message(std::string(1u << 19, '1') + "q").size(), 1000u);
}

/// What fn gives on a thread whose stack has so many bytes.
template <class Fn>
void on_small_stack(std::size_t bytes, Fn fn) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
  pthread_t thread;
  const auto call = [](void* given) -> void* { return (*static_cast<Fn*>(given))(), nullptr; };
  ASSERT_EQ(pthread_create(&thread, &attributes, call, &fn), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which make frames larger
TEST(ParseLimits, TheDeepestTextNeedsASmallStack) {
  const auto nested = [](const std::string& open, const std::string& close) {
    std::string text;
    for (int i = 0; i < 199; ++i) text += open;
    text += "score";
    for (int i = 0; i < 199; ++i) text += close;
    return text;
  };
  for (const auto& [open, close] :
       {std::pair{"(", ")"}, {"exp(", ")"}, {"where(True, 1.0, ", ")"}, {"1.0 + (", ")"}, {"-(", ")"}, {"b[to_integer(", ")]"}}) {
    const std::string text = nested(open, close);
    std::string message = "not run";
    on_small_stack(std::size_t{256} << 10, [&] {
      try {
        (void)parse(text, params());
        message = "";
      } catch (const Error& error) {
        message = error.what();
      }
    });
    EXPECT_TRUE(message.empty() || message.find("nested deeper than 200") != std::string::npos) << open << ": " << message;
  }
}
#endif

TEST(ParseLimits, LongFlatTextIsFine) {
  std::string text = "score";
  for (int i = 0; i < 5000; ++i) text += " + b[" + std::to_string(i % 64) + "] * " + std::to_string(i) + ".5";
  const Expr expr = parse(text, params());
  const std::string printed = to_string(expr);
  EXPECT_EQ(to_string(parse(printed, params())), printed);
}

TEST(Print, SharedPartsOfLargeExpressionsGetNames) {
  Expr x = score;
  for (int i = 0; i < 60; ++i) x = x * sin(x);  // 2^60 operations when written as a tree
  const std::string text = to_string(x);
  EXPECT_LT(text.size(), 5000u);
  EXPECT_EQ(to_string(parse(text)), text);
}

TEST(Print, DeepExpressionsSurvive) {
  Expr x = score;
  for (int i = 0; i < 100000; ++i) x = tanh(x);
  const std::string text = to_string(x);
  EXPECT_EQ(to_string(parse(text)), text);
}

TEST(ParseParam, ReadsWhatItPrints) {
  const Param rel = parse_param(" rel : real [ 4, 33 ] ");
  EXPECT_EQ(rel.name(), "rel");
  EXPECT_EQ(rel.shape(), (std::vector<std::int64_t>{4, 33}));
  EXPECT_EQ(rel.type(), Type::real);
  EXPECT_TRUE(parse_param("c: boolean[]").shape().empty());
  EXPECT_EQ(parse_param("ids: integer[128]").type(), Type::integer);
}

TEST(Parse, CharactersBeyondAsciiAreShownWholeAndAreNoLetters) {
  const auto message = [](std::string_view text) -> std::string {
    try {
      parse(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message("score + \u20AC").find("found \"\u20AC\""), std::string::npos) << message("score + \u20AC");
  // In a locale of one byte for each character, such letters are letters to <cctype>.
  const std::string folder = testing::TempDir() + "foveal-locale";
  if (std::system(("mkdir -p " + folder + " && localedef -i de_DE -f ISO-8859-1 " + folder + "/de 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "no localedef";
  setenv("LOCPATH", folder.c_str(), 1);
  const char* set = std::setlocale(LC_ALL, "de");
  const std::string unit = message("\xE4 + score"), number = message("score * 0.5 + 1e-3");
  const bool takes = std::isalpha(0xE4) != 0;
  EXPECT_THROW(Param("gr\xF6\xDF"
                     "e",
                     {2}),
               Error);
  std::setlocale(LC_ALL, "C");
  if (set == nullptr || !takes) GTEST_SKIP() << "no such locale";
  EXPECT_NE(unit.find("expected a value"), std::string::npos) << unit;
  EXPECT_EQ(number, "accepted");
}

TEST(ParseParam, SaysWhatIsWrong) {
  const auto message = [](std::string_view text) -> std::string {
    try {
      parse_param(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message("rel real[4]").find("expected \":\""), std::string::npos);
  EXPECT_NE(message("rel: float[4]").find("expected a type"), std::string::npos);
  EXPECT_NE(message("rel: real[4, 0]").find("expected a positive size, found \"0\""), std::string::npos);
  EXPECT_NE(message("rel: real[4").find("expected \"]\""), std::string::npos);
  EXPECT_NE(message("score: real[4]").find("symbol, function or keyword"), std::string::npos);
  EXPECT_NE(message("rel: real[1,1,1,1,1,1,1]").find("at most 6"), std::string::npos);
  EXPECT_NE(message("rel: real[4] x").find("expected the end"), std::string::npos);
  EXPECT_NE(message("rel: real[99999999999999999999]").find("positive size"), std::string::npos);
}

TEST(Parse, AConstantBeyondAllIntegersIsRefused) {
  for (const char* text : {"80000 << 49", "score + (-80000 << 62)", "1000000 << 49999"})
    EXPECT_THROW(to_string(parse(text)), Error) << text;
}

}  // namespace
}  // namespace foveal
