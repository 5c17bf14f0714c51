// Over which pairs values vary, and what that makes of the gradients that are summed over them.
#include "score/varies.h"

#include <gtest/gtest.h>

#include <string>

#include "foveal/score.h"
#include "score/program.h"

namespace foveal::scoring {
namespace {

Varies of(const std::string& index) {
  const std::vector<Param> params{Param("t", {64}, Type::real), Param("ids", {64}, Type::integer)};
  const ScoreProgram program = compile({.score_mod = parse("score + t[" + index + "]", params), .params = params});
  for (std::size_t i = 0; i < program.forward.code.size(); ++i)
    if (program.forward.code[i].op == Op::read && program.forward.code[i].param == 0)
      return varies(program.forward, static_cast<ValueId>(i));
  ADD_FAILURE() << index;
  return {};
}

TEST(Varies, FollowsFromTheSymbolsOfAValue) {
  EXPECT_EQ(of("head + batch"), Varies::uniform);
  EXPECT_EQ(of("seqlen_kv - 1"), Varies::uniform);
  EXPECT_EQ(of("q_idx // 2 + head"), Varies::row);
  EXPECT_EQ(of("ids[kv_idx]"), Varies::column);
  EXPECT_EQ(of("clamp(kv_idx - q_idx, -8, 8) + 8"), Varies::diagonal);
  EXPECT_EQ(of("ids[q_idx] + ids[kv_idx]"), Varies::pair);
  EXPECT_EQ(of("q_idx + kv_idx"), Varies::pair);
  EXPECT_EQ(of("to_integer(score)"), Varies::pair);
}

TEST(Varies, JoinsAsALattice) {
  constexpr Varies all[] = {Varies::uniform, Varies::row, Varies::column, Varies::diagonal, Varies::pair};
  for (const Varies a : all) {
    EXPECT_EQ(join(a, a), a);
    EXPECT_EQ(join(a, Varies::uniform), a);
    EXPECT_EQ(join(a, Varies::pair), Varies::pair);
    for (const Varies b : all) {
      EXPECT_EQ(join(a, b), join(b, a));
      for (const Varies c : all) EXPECT_EQ(join(join(a, b), c), join(a, join(b, c)));
    }
  }
  EXPECT_EQ(join(Varies::row, Varies::column), Varies::pair);
}

}  // namespace
}  // namespace foveal::scoring
