// Which reals decide something discrete.
#include "score/discrete.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace foveal::scoring {
namespace {

/// Whether the product with t[head] in the score is one of them.
bool decides(const std::string& score, bool beside_score) {
  const std::vector<Param> params{Param("t", {64}, Type::real), Param("u", {64}, Type::real)};
  const ScoreProgram program = compile({.score_mod = parse(score, params), .params = params});
  const base::IdVector<char> found = deciding_reals(program.forward, beside_score);
  for (ValueId id = 0; id < found.size(); ++id)
    if (program.forward[id].op == Op::exp) return found[id] != 0;
  ADD_FAILURE() << score;
  return false;
}

TEST(DecidingReals, AreThoseOfIndicesComparisonsAndRoundings) {
  for (const char* score :
       {"score + u[to_integer(exp(t[head]))]", "where(exp(t[head]) < 2, score, 0)", "score + floor(exp(t[head]))",
        "score + floor(2 * exp(t[head]) + t[kv_idx])", "score + exp(t[head]) // 2", "score + exp(t[head]) % 2",
        "where(to_boolean(exp(t[head])), score, 0)", "score + to_bfloat16(exp(t[head]))", "score + to_float16(exp(t[head]))"}) {
    EXPECT_TRUE(decides(score, false)) << score;
    EXPECT_TRUE(decides(score, true)) << score;
  }
  EXPECT_FALSE(decides("score * exp(t[head])", true));
  EXPECT_FALSE(decides("where(t[head] < 2, score, exp(t[head]))", true));
}

TEST(DecidingReals, BesideTheScore) {
  EXPECT_FALSE(decides("where(score < exp(t[head]), score, 0)", false));
  EXPECT_TRUE(decides("where(score < exp(t[head]), score, 0)", true));
  EXPECT_FALSE(decides("where(exp(score) < t[head], score, 0)", true));
}

/// Whether the quotient in the score is one.
bool is_deciding_quotient(const std::string& score) {
  const std::vector<Param> params{Param("t", {64}, Type::real)};
  const ScoreProgram program = compile({.score_mod = parse(score, params), .params = params});
  const base::IdVector<char> found = deciding_quotients_of_scores(program.forward);
  for (ValueId id = 0; id < found.size(); ++id)
    if (program.forward[id].op == Op::div) return found[id] != 0;
  ADD_FAILURE() << score;
  return false;
}

TEST(DecidingQuotients, AreThoseOfTwoScoresThatAreRoundedOrCompared) {
  for (const char* score :
       {"score + floor(score / abs(score))", "floor(2 * (score / tanh(score)))", "where(score / abs(score) == 1, score, 0)",
        "score * to_real(to_integer(score / abs(score)))", "floor(where(head == 0, score / abs(score), 0))"})
    EXPECT_TRUE(is_deciding_quotient(score)) << score;
  for (const char* score :
       {"score / abs(score)", "floor(score / t[head])", "floor(t[head] / score)", "where(score < 0, score / abs(score), 0)"})
    EXPECT_FALSE(is_deciding_quotient(score)) << score;
}

}  // namespace
}  // namespace foveal::scoring
