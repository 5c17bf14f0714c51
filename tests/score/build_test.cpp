// Expressions as C++ values: types and promotion, and the errors of wrong ones.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "foveal/error.h"
#include "foveal/masks.h"
#include "foveal/score.h"

namespace foveal {
namespace {

using namespace symbols;

template <class Build>
std::string message(Build&& build) {
  try {
    build();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

void expect_error(const std::string& found, const std::string& part) { EXPECT_NE(found.find(part), std::string::npos) << found; }

TEST(Build, MixedTypesBecomeTheWider) {
  const Param flag{"flag", {}, Type::boolean};
  EXPECT_EQ((q_idx + 1).type(), Type::integer);
  EXPECT_EQ((q_idx + 1.0).type(), Type::real);
  EXPECT_EQ((score + q_idx).type(), Type::real);
  EXPECT_EQ((flag() + flag()).type(), Type::integer);
  EXPECT_EQ((flag() * score).type(), Type::real);
  EXPECT_EQ((-flag()).type(), Type::integer);
  EXPECT_EQ((q_idx / 2).type(), Type::real);
  EXPECT_EQ(floor_div(q_idx, 2).type(), Type::integer);
  EXPECT_EQ((q_idx < 1.5).type(), Type::boolean);
  EXPECT_EQ(where(flag(), 1, 2.0).type(), Type::real);
  EXPECT_EQ(where(flag(), true, 2).type(), Type::integer);
  EXPECT_EQ(min(q_idx, 3).type(), Type::integer);
  EXPECT_EQ(exp(q_idx).type(), Type::real);
  EXPECT_EQ(pow(q_idx, 2).type(), Type::real);
  EXPECT_EQ(to_integer(score).type(), Type::integer);
  EXPECT_EQ(to_boolean(score).type(), Type::boolean);
}

TEST(Build, WrongTypesAreNamed) {
  expect_error(message([] { return score & (q_idx < 1); }), "operator &: operands are real and boolean; expected integers or booleans");
  expect_error(message([] { return !q_idx; }), "operator ~: the operand is integer; expected boolean");
  expect_error(message([] { return where(q_idx, 1, 2); }), "where: the condition is integer; expected boolean");
  expect_error(message([] { return Expr() + 1; }), "operator +: an operand is an absent Expr");
  expect_error(message([] { return exp(Expr()); }), "exp: an operand is an absent Expr");
  expect_error(message([] { return Expr().type(); }), "absent");
  expect_error(message([] { return to_string(Expr()); }), "absent");
  expect_error(message([] { return Expr(std::nan("")); }), "NaN");
}

TEST(Build, ParamsAreChecked) {
  const auto param = [](const char* name, std::vector<std::int64_t> shape) { return message([&] { return Param(name, shape); }); };
  EXPECT_EQ(param("rel_bias", {4, 33}), "accepted");
  EXPECT_EQ(param("window", {4}), "accepted");  // hides the mask of that name
  for (const char* name : {"", "9lives", "a-b", "a b", "\xc3\xa9"}) expect_error(param(name, {4}), "is no identifier");
  for (const char* name : {"score", "q_idx", "exp", "where", "clamp", "and", "True", "inf", "_1"})
    expect_error(param(name, {4}), "symbol, function or keyword");
  expect_error(param("b", {0}), "a size is 0; expected positive sizes");
  expect_error(param("b", {-3}), "a size is -3");
  expect_error(param("b", {1, 1, 1, 1, 1, 1, 1}), "rank 7; expected at most 6");

  const Param b{"b", {4, 8}};
  expect_error(message([&] { return b(q_idx); }), "parameter b: read with 1 indices; expected 2");
  expect_error(message([&] { return b(q_idx, score); }), "parameter b: index 1 is real; expected integer");
  expect_error(message([&] { return b(q_idx, Expr()); }), "parameter b: index 1 is an absent Expr");
  expect_error(message([&] { return Param().read({}); }), "Param: absent");
  Param gone = b;
  const Param taken = std::move(gone);
  for (const Param& absent : {Param(), gone}) {  // NOLINT(bugprone-use-after-move): what a caller may do
    expect_error(message([&] { return absent.name(); }), "Param: absent, it has no name");
    expect_error(message([&] { return absent.shape(); }), "Param: absent, it has no shape");
    expect_error(message([&] { return absent.type(); }), "Param: absent, it has no type");
  }
  EXPECT_EQ(b(q_idx, kv_idx <= q_idx).type(), Type::real);  // a truth value is 0 or 1, also as an index
}

TEST(Build, NamedMasksCheckTheirArguments) {
  const Param real{"real_ids", {8}}, deep{"deep", {8, 8, 8}, Type::integer};
  expect_error(message([] { return window(-1); }), "window: w is -1");
  expect_error(message([] { return prefix_lm(-2); }), "prefix_lm: prefix is -2");
  expect_error(message([&] { return document(real); }), "document: ids must be an integer Param");
  expect_error(message([&] { return document(deep); }), "document: ids must be an integer Param");
  expect_error(message([&] { return padding(deep); }), "padding: lengths must be an integer Param");
  expect_error(message([&] { return global_tokens(4, real); }), "global_tokens: is_global must be");
  expect_error(message([] { return dilated(8, 0); }), "dilated: d is 0");
  expect_error(message([] { return alibi(0); }), "alibi: heads is 0");
  expect_error(message([] { return softcap(0); }), "softcap: cap is 0");
  expect_error(message([] { return softcap(INFINITY); }), "softcap: cap is inf");
}

TEST(Build, EveryNamedExpressionIsBuiltByItsName) {
  for (const NamedExpr& row : named_exprs()) {
    std::string call = row.name + "(";
    std::vector<Param> params;
    for (int i = 0; i < row.integers; ++i) call += (i ? ", " : "") + std::string("4");
    if (row.params == 1) {
      params.emplace_back("p", std::vector<std::int64_t>{16}, Type::integer);
      call += row.integers ? ", p" : "p";
    }
    const Expr expr = parse(call + ")", params);
    EXPECT_EQ(to_string(expr), to_string(row.build(std::vector<double>(static_cast<std::size_t>(row.integers), 4.0), params))) << call;
    EXPECT_EQ(row.signature.substr(0, row.name.size()), row.name);
    EXPECT_FALSE(row.summary.empty());
  }
}

TEST(Build, VeryDeepExpressionsAreTakenApart) {
  Expr x = score;
  for (int i = 0; i < 1000000; ++i) x = -x;
  EXPECT_EQ(to_string(x), "score");
}

TEST(Build, LargeExpressionsAreRefusedWithTheirSize) {
  Expr x = score;
  for (int i = 0; i < 300000; ++i) x = tanh(x);
  expect_error(message([&] { return to_string(x); }), "more than 262144 operations");
}

}  // namespace
}  // namespace foveal
