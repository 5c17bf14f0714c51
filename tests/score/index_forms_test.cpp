// Sums of positions, and the elements that trained reads address by them.
#include "score/index_forms.h"

#include <gtest/gtest.h>

#include <string>

#include "foveal/score.h"

namespace foveal::scoring {
namespace {

/// The only trained read of a score, of tables for 2 batch entries, 4 heads, 16 queries and 32 keys.
struct Read {
  explicit Read(const std::string& element) : program(compiled(element)), forms(program.backward, program.params, bounds()) {}

  static ScoreProgram compiled(const std::string& element) {
    const std::vector<Param> params{Param("a", {48}), Param("b", {16, 32}), Param("c", {4, 16, 32}), Param("ids", {32}, Type::integer)};
    std::vector<bool> wants;
    for (const Param& param : params) wants.push_back(element.starts_with(param.name() + "["));
    return compile({.score_mod = parse("score + " + element, params), .params = params, .wants_gradient = wants, .backward = true});
  }
  base::IdVector<Interval> bounds() const {
    const Box box{.batch = {0, 1}, .head = {0, 3}, .q_idx = {0, 15}, .kv_idx = {0, 31}, .seqlen_q = {16, 16}, .seqlen_kv = {32, 32}};
    const std::vector<Interval> ranges(program.params.size(), {0, 31});
    return evaluate(program.backward, box, WholeRanges(ranges));
  }
  const TrainableRead& read() const { return program.reads[0]; }
  std::vector<Op> own() const { return forms.own_positions(read()); }

  const ScoreProgram program;
  const IndexForms forms;
};

TEST(IndexForms, FindPositionsThatReadElementsOfTheirOwn) {
  EXPECT_EQ(Read("c[head, q_idx, kv_idx]").own(), (std::vector{Op::head, Op::q_idx, Op::kv_idx}));
  EXPECT_EQ(Read("a[q_idx - kv_idx + 31]").own(), std::vector{Op::q_idx});  // another key may undo another query
  EXPECT_EQ(Read("b[q_idx, kv_idx + 1]").own(), std::vector{Op::q_idx});    // the last two keys are clamped to one element
  EXPECT_TRUE(Read("a[ids[kv_idx]]").own().empty());
}

TEST(IndexForms, KnowWhichPositionsSeparateElements) {
  const auto separates = [](const std::string& element, const std::string& added) {
    const std::vector<Param> params{Param("c", {4, 16, 32}), Param("ids", {32}, Type::integer)};
    const ScoreProgram program = compile(
        {.score_mod = parse("score * " + element + added, params), .params = params, .wants_gradient = {true, false}, .backward = true});
    const Box box{.batch = {0, 1}, .head = {0, 3}, .q_idx = {0, 15}, .kv_idx = {0, 31}, .seqlen_q = {16, 16}, .seqlen_kv = {32, 32}};
    const std::vector<Interval> ranges(program.params.size(), {0, 31});
    const IndexForms forms(program.backward, program.params, evaluate(program.backward, box, WholeRanges(ranges)));
    std::string found;
    for (const auto& [name, position] : {std::pair{'b', Op::batch}, {'h', Op::head}, {'q', Op::q_idx}, {'k', Op::kv_idx}})
      if (forms.separates(position, {program.reads.begin(), program.reads.end()})) found += name;
    return found;
  };
  EXPECT_EQ(separates("c[head, q_idx, kv_idx]", ""), "hqk");
  EXPECT_EQ(separates("c[head, q_idx - 1, ids[kv_idx]]", ""), "h");  // the first two queries are clamped to one row
  EXPECT_EQ(separates("c[head, 15 - q_idx, kv_idx]", ""), "hk");
  EXPECT_EQ(separates("c[0, q_idx, q_idx + kv_idx // 4]", " + c[1, q_idx, kv_idx]"), "q");
  EXPECT_EQ(separates("c[head, 0, kv_idx]", " + c[kv_idx, 0, head]"), "");  // in other dimensions
  EXPECT_EQ(separates("c[head, q_idx % 16, kv_idx]", " + c[head, q_idx // 2, kv_idx]"), "hk");
}

TEST(IndexForms, KnowWhichElementsPairsTouch) {
  const Read whole("c[head, q_idx, kv_idx]"), part("a[kv_idx + 16]"), beyond("a[kv_idx + 17]");
  EXPECT_TRUE(whole.forms.covers(whole.read()));
  EXPECT_FALSE(part.forms.covers(part.read()));
  EXPECT_EQ(whole.forms.elements(whole.read()), 16 * 32);  // of one head
  EXPECT_EQ(part.forms.elements(part.read()), 48);
  EXPECT_TRUE(part.forms.is_inside(part.read()));
  EXPECT_FALSE(beyond.forms.is_inside(beyond.read()));
}

TEST(IndexForms, SumPositionsHoweverTheyAreWritten) {
  const Read difference("a[(kv_idx + 3) - (q_idx - 12)]"), lines("a[ids[kv_idx] + q_idx]"), product("a[q_idx * kv_idx // 16]");
  const Linear* const sum = difference.forms.sum_of_places(difference.read().index[0]);
  ASSERT_NE(sum, nullptr);
  EXPECT_EQ(difference.forms.of_kv(*sum), 1);
  EXPECT_EQ(difference.forms.of_q(*sum), -1);
  EXPECT_EQ(sum->constant, 15);
  EXPECT_TRUE(difference.forms.is_of_places(*sum));
  EXPECT_EQ(difference.forms.sum_of_lines(difference.read().index[0]), nullptr);  // of places alone
  EXPECT_NE(lines.forms.sum_of_lines(lines.read().index[0]), nullptr);
  EXPECT_TRUE(lines.forms.is_element_of_lines(lines.read()));
  EXPECT_EQ(product.forms.sum_of_lines(product.read().index[0]), nullptr);
}

}  // namespace
}  // namespace foveal::scoring
