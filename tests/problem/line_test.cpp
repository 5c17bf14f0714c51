#include "problem/line.h"

#include <gtest/gtest.h>

#include "foveal/foveal.h"
#include "problem/case_data.h"
#include "problem/line_problem.h"
#include "problem/problem.h"
#include "problem/random_line.h"

namespace foveal::problem {
namespace {

TEST(Line, SaysTheWholeProblem) {
  const Line line = parse_line(
      "backward bf16 b2 h12:4 q1024:2048 d64:128 layout=bhsd mask=\"causal() & window(7)\" score=\"score + rel[head, clamp(kv_idx - q_idx, "
      "-2, 2) + 2]\" "
      "param=\"rel: real[12, 5] f32 normal(0.25) grad=f64\" param=\"s: real[12]\" sink=s scale=0.5 dropout=0.25:7:9 "
      "determinism=reproducible strategy=split "
      "checked q_offset=3 kv_offset=4 dlse grads=dq,dv seed=11 inputs=adversarial device=cuda:1 backend=cuda target=sm90 threads=2");
  EXPECT_EQ(line.pass, Pass::backward);
  EXPECT_EQ(line.dtype, DType::bf16);
  EXPECT_EQ(line.batch, 2);
  EXPECT_EQ(line.heads_q, 12);
  EXPECT_EQ(line.heads_kv, 4);
  EXPECT_EQ(line.seqlen_q, 1024);
  EXPECT_EQ(line.seqlen_kv, 2048);
  EXPECT_EQ(line.head_dim, 64);
  EXPECT_EQ(line.head_dim_v, 128);
  EXPECT_EQ(line.layout, Layout::bhsd);
  EXPECT_EQ(to_string(line.attention.mask), to_string(causal() & window(7)));
  ASSERT_EQ(line.params.size(), 2u);
  EXPECT_EQ(line.params[0].fill.args, std::vector<double>{0.25});
  EXPECT_TRUE(line.params[0].grad);
  EXPECT_EQ(line.params[0].grad_dtype, DType::f64);
  EXPECT_EQ(line.attention.sink->name(), "s");
  EXPECT_EQ(line.rng.seed, 7u);
  EXPECT_EQ(line.rng.offset, 9u);
  EXPECT_EQ(line.attention.backward, BackwardStrategy::split);
  EXPECT_TRUE(line.dq && !line.dk && line.dv && line.dlse && line.attention.checked);
  EXPECT_EQ(line.seed, 11u);
  EXPECT_EQ(line.fill, Fill::adversarial);
  EXPECT_EQ(line.device, (Device{DeviceKind::cuda, 1}));
  EXPECT_EQ(line.options.target, "sm90");
  EXPECT_EQ(to_string(parse_line(to_string(line))), to_string(line));
}

TEST(Line, RandomLinesAreReadBack) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    base::Random random(seed);
    const std::string text = to_string(random_line(random));
    ASSERT_EQ(to_string(parse_line(text)), text);
  }
}

TEST(Line, AProblemPrintsTheLineItWasMadeFrom) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    base::Random random(seed);
    Line line = random_line(random, {.seqlen = 40, .head_dim = 40, .pairs = 3000});
    const CaseData data(line);
    const Problem problem = line.pass == Pass::forward ? make_problem(line.attention, data.forward_inputs(), data.forward_outputs())
                                                       : make_problem(line.attention, data.backward_inputs(), data.backward_outputs());
    // What a problem cannot know: data, lengths, a run's numbers for dropout, and a gradient that is not asked for.
    line.rng = {}, line.rng_in_memory = false;
    line.seed = 0, line.fill = Fill::normal, line.lengths.clear();
    for (ParamLine& param : line.params) {
      param.fill = {};
      param.grad = param.grad && line.pass == Pass::backward;
      if (!param.grad) param.grad_dtype = DType::f32;
    }
    Line printed = line_of(problem);
    if (printed.layout != line.layout) {  // sizes of one make layouts equal
      line.layout = printed.layout;
    }
    EXPECT_EQ(to_string(printed), to_string(line));
    EXPECT_EQ(problem.line(), to_string(printed));
  }
}

TEST(Line, LengthsSayAPackedBatch) {
  const Line line = parse_line("forward f32 h2 d8 lengths=5,3:7,0:2");
  EXPECT_TRUE(line.varlen);
  EXPECT_EQ(line.batch, 3);
  EXPECT_EQ(line.total_q, 8);
  EXPECT_EQ(line.total_kv, 14);
  EXPECT_EQ(line.seqlen_q, 5);
  EXPECT_EQ(line.seqlen_kv, 7);
  const Line even = parse_line("forward f32 b3 h2 q4 d8 total=10");
  EXPECT_EQ(even.lengths, (std::vector<std::pair<std::int64_t, std::int64_t>>{{4, 4}, {3, 3}, {3, 3}}));
  const Line drawn = parse_line("forward f32 b4 h2 q100 d8 layout=thd seed=5");
  EXPECT_EQ(drawn.lengths.size(), 4u);
  EXPECT_EQ(drawn.lengths[0].first, 100);
  EXPECT_EQ(to_string(drawn), to_string(parse_line("forward f32 b4 h2 q100 d8 layout=thd seed=5")));
}

struct Wrong {
  const char* text;
  const char* message;
};

/// By which a failure names it.
void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.text; }

class WrongLine : public testing::TestWithParam<Wrong> {};

TEST_P(WrongLine, NamesTheTokenAndItsColumn) {
  try {
    CaseData data(parse_line(GetParam().text));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find(GetParam().message), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, WrongLine,
    testing::Values(Wrong{"forward f32 bX", "column 13: bX: unknown; expected forward, backward"},
                    Wrong{"forward b2x", "column 9: b2x: '2x'; expected a number"}, Wrong{"h4:2:1", "h4:2:1: '4:2:1'; expected N or N:M"},
                    Wrong{"forward layout=zzz", "column 9: layout: 'zzz'; expected bshd, bhsd"},
                    Wrong{"mask=\"causal()", "column 1: mask: a quote is not closed"}, Wrong{"mask=", "mask: has no value"},
                    Wrong{"checked=0", "column 1: checked: '0'; expected no value"},
                    Wrong{"q8 no_lse=false", "column 4: no_lse: 'false'; expected no value"},
                    Wrong{"backward=no", "backward: 'no'; expected no value"}, Wrong{"f32=1", "f32: '1'; expected no value"},
                    Wrong{"mask=\"kv_idx <\"",
                          "mask: line 1, column 9: expected a value, found the end of the text\n  kv_idx <\n          ^"},
                    Wrong{"score=\"score +\"", "score: line 1, column 8: "}, Wrong{"param=\"x\"", "param: 'x'; expected name: type[sizes]"},
                    Wrong{"param=\"x: real[2] normal(1\"", "expected name(numbers)"},
                    Wrong{"param=\"x: real[2] gaussian(1)\"", "'gaussian(1)'; expected a dtype, grad, grad=dtype or one of"},
                    Wrong{"sink=s", "sink: 's' is no param of this line"},
                    Wrong{"dropout=0.1:2:3:4", "expected p, p:seed, p:seed:offset or p:seed:offset:memory"},
                    Wrong{"backward grads=dx", "'dx'; expected dq, dk, dv or none"},
                    Wrong{"backward grads=dq,dk,dq", "grads: 'dq' given twice"},
                    Wrong{"scale=1e-400", "scale: '1e-400' is out of range; expected a number"},
                    Wrong{"b99999999999999999999", "'99999999999999999999' is out of range; expected a number"},
                    Wrong{"strategy=fast", "'fast'; expected one of automatic, fused, split, two_scan"},
                    Wrong{"device=tpu", "expected cpu, cuda or cuda:N"}, Wrong{"backend=\"a b\"", "a name has letters, digits and _"},
                    Wrong{"target=\"a=b\"", "a name has letters, digits and _"}, Wrong{"strides=q", "expected name:stride,stride"},
                    Wrong{"q3037000500 d3037000500", "q: sizes [1, 3037000500, 1, 3037000500]; expected at most 2^48 elements"},
                    Wrong{"b9223372036854775807", "b9223372036854775807; expected at most 2^48"},
                    Wrong{"b2 q4294967296 d4294967296 layout=bhsd", "expected at most 2^48 elements"},
                    Wrong{"h9223372036854775807 q2 layout=packed_qkv", "expected at most 2^48 elements"},
                    Wrong{"q0", "q: a size is 0; expected at least 1"}, Wrong{"lengths=3,-1", "a length is negative"},
                    Wrong{"total=8:-4", "a length is negative"}, Wrong{"total=-8:4", "a length is negative"},
                    Wrong{"lengths=9223372036854775807,9223372036854775807,8", "packed sequences of more than 2^48 tokens"},
                    Wrong{"lengths=5:9223372036854775807,5:3", "packed sequences of more than 2^48 tokens"},
                    Wrong{"b3 q9223372036854775807 layout=thd", "packed sequences of more than 2^48 tokens"},
                    Wrong{"q8 cu=i64", "cu= without lengths that it is the type of; expected layout=thd"},
                    Wrong{"b100000000000 q1 layout=thd", "b100000000000; expected 1 to 1048576 of packed sequences"},
                    Wrong{"q4:5 layout=packed_qkv", "layout=packed_qkv needs equal lengths of q and kv"},
                    Wrong{"strides=q:1,2", "strides of q: 2 of them; expected 4"},
                    Wrong{"strides=query:1,2,3,4", "'query' is not a tensor; expected one of q, k, v, out"},
                    Wrong{"forward i32 q8", "column 9: i32: unknown; expected forward, backward, f64, f32"}));

/// What a line says twice, or says without a meaning, was dropped without a word.
INSTANTIATE_TEST_SUITE_P(
    Contradictions, WrongLine,
    testing::Values(Wrong{"forward backward", "column 9: backward: the line has given pass before"},
                    Wrong{"f32 bf16", "bf16: the line has given dtype before"},
                    Wrong{"b1 q4 b2", "column 7: b2: the line has given b before"},
                    Wrong{"scale=1 scale=2", "scale: the line has given scale before; expected it once"},
                    Wrong{"lengths=3 lengths=4", "the line has given lengths before"},
                    Wrong{"strides=q:1,1,1,1;q:2,1,1,1", "'q' given twice"}, Wrong{"checked checked", "the line has given checked before"},
                    Wrong{"param=\"x: real[2] f32 f64\"", "'f64' in 'x: real[2] f32 f64'; expected one dtype, one fill, one grad"},
                    Wrong{"param=\"x: real[2] normal(1) arange\"", "'arange' in"},
                    Wrong{"param=\"x: real[2] grad grad=f64\"", "'grad=f64' in"},
                    Wrong{"lengths=3 b2", "b2 and 1 lengths; expected as many"}, Wrong{"lengths=3 total=3", "lengths= and total="},
                    Wrong{"forward q4 dlse", "column 12: dlse: given for a forward pass; expected backward"},
                    Wrong{"grads=dq", "grads: given for a forward pass; expected backward"},
                    Wrong{"no_lse backward", "column 1: no_lse: given for a backward pass; expected forward"},
                    Wrong{"device=cpu:3", "expected cpu, cuda or cuda:N"}, Wrong{"device=cuda:-1", "expected cpu, cuda or cuda:N"},
                    Wrong{"sample=-3", "'-3'; expected 0 or more"}));

INSTANTIATE_TEST_SUITE_P(
    Fills, WrongLine,
    testing::Values(Wrong{"param=\"x: real[2] normal(-1)\"", "x: the numbers of normal have no meaning"},
                    Wrong{"param=\"x: real[2] uniform(3, 1)\"", "the numbers of uniform have no meaning"},
                    Wrong{"param=\"x: real[2] uniform(0, inf)\"", "the numbers of uniform have no meaning"},
                    Wrong{"param=\"x: integer[2] integers(3, 1)\"", "the numbers of integers have no meaning"},
                    Wrong{"param=\"x: integer[2] integers(0.5, 3)\"", "the numbers of integers have no meaning"},
                    Wrong{"param=\"x: boolean[2] bernoulli(2)\"", "the numbers of bernoulli have no meaning"},
                    Wrong{"param=\"x: integer[2] segments(0)\"", "the numbers of segments have no meaning"},
                    Wrong{"param=\"x: integer[2] segments(1e15)\"", "the numbers of segments have no meaning"},
                    Wrong{"param=\"x: integer[2] normal(1)\"", "normal gives reals, -1 to 1; i32 holds integers from"},
                    Wrong{"param=\"x: integer[2] constant(0.5)\"", "constant gives reals, 0.5 to 0.5; i32 holds integers"},
                    Wrong{"param=\"x: integer[2] i8 integers(0, 300)\"", "integers gives 0 to 300; i8 holds integers from -128 to 127"},
                    Wrong{"param=\"x: integer[300] u8 arange\"", "arange gives 0 to 299; u8 holds integers from 0 to 255"},
                    Wrong{"param=\"x: boolean[3] constant(2)\"", "constant gives 2 to 2; boolean holds integers from 0 to 1"}));

TEST(Line, OfBothPassesIsTwoLines) {
  const std::vector<Line> both = parse_lines("both f64 b2 q4 no_lse dlse grads=dq");
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(to_string(both[0]), to_string(parse_line("forward f64 b2 q4 no_lse")));
  EXPECT_EQ(to_string(both[1]), to_string(parse_line("backward f64 b2 q4 dlse grads=dq")));
  EXPECT_EQ(parse_lines("forward q4").size(), 1u);
}

TEST(Line, ATotalOfNothingIsATotal) {
  const Line line = parse_line("forward b2 total=0:5");
  EXPECT_EQ(line.lengths, (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 3}, {0, 2}}));
}

TEST(Problem, OfALineWithTooFewStridesIsRefused) {
  const Line line = parse_line("strides=lse:8,1");
  try {
    problem_of(line, {DeviceKind::cuda, 0});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("strides of lse: 2 of them; expected 3"), std::string::npos) << error.what();
  }
}

/// What a call has not said yet is not said in its errors: "[forward f32 b0 h0 q0 d0]".
TEST(Problem, ErrorsBeforeSizesAreReadNameNone) {
  std::vector<float> data(64);
  for (const TensorView& q : {TensorView(data.data(), DType::f32, {2, 2, 16}), TensorView(data.data(), DType::i64, {1, 2, 1, 16})}) try {
      make_problem({}, ForwardInputs{.q = q, .k = q, .v = q}, {.out = q});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find("[forward"), std::string::npos) << error.what();
    }
}

TEST(CaseData, EqualLinesGiveEqualData) {
  const Line line = parse_line("backward f32 b1 h2 q9 d8 param=\"b: real[4] grad\" score=\"score + b[q_idx % 4]\" seed=3");
  const CaseData a(line), b(line);
  EXPECT_EQ(values_of(a.view("q")), values_of(b.view("q")));
  EXPECT_EQ(values_of(a.param(0)), values_of(b.param(0)));
  Line other = line;
  other.seed = 4;
  EXPECT_NE(values_of(CaseData(other).view("q")), values_of(a.view("q")));
}

TEST(CaseData, DamageIsFound) {
  CaseData data(parse_line("backward f32 b1 h2 q9 d8 layout=padded"));
  EXPECT_EQ(data.damage(), "");
  const TensorView dq = data.view("dq");
  static_cast<float*>(dq.data)[dq.sizes[3]] = 1;  // the gap after the first head
  EXPECT_EQ(data.damage(), "dq");
  CaseData packed(parse_line("backward f32 b1 h2 q9 d8 layout=packed_qkv"));
  static_cast<float*>(packed.view("dq").data)[-1] = 1;
  EXPECT_EQ(packed.damage(), "dqdkdv");
}

TEST(CaseData, SixteenBitDataAreTheSameInF64) {
  const CaseData data(parse_line("backward bf16 b1 h2 q9 d8 layout=dim_first"));
  const CaseData exact = data.as_f64();
  EXPECT_EQ(exact.view("q").dtype, DType::f64);
  EXPECT_EQ(values_of(data.view("q")), values_of(exact.view("q")));
  EXPECT_EQ(values_of(data.view("dout")), values_of(exact.view("dout")));
}

}  // namespace
}  // namespace foveal::problem
