// Segments: parts of packed sequences as one call, on every backend that takes them; wrong tables are refused.
#include <gtest/gtest.h>

#include <limits>

#include "check/check.h"
#include "dist/ranks.h"
#include "problem/line.h"

namespace foveal::dist {
namespace {

TEST(Segments, EveryHostBackendTakesThem) {
  for (const char* text :
       {"backward f32 b2 h4:2 q60 d16 mask=\"kv_idx + batch <= q_idx + head\" score=\"score + rel[q_idx - kv_idx] * to_real(seqlen_kv)"
        " * 0.01\" param=\"rel: real[60] f32 normal(0.5) grad\" dropout=0.2:3",
        "backward f32 h2 d16 lengths=33,20,40 mask=\"kv_idx <= q_idx + batch\" dlse"})
    for (const auto& [backend, target] : {std::pair{"reference", ""}, {"cpu", "scalar"}, {"cpu", "avx2"}}) {
      ContextOptions options;
      options.unit = 8, options.plan.backend = backend, options.plan.target = target;
      const check::Report report =
          check::Checker(problem::parse_line(text)).judge([&](problem::CaseData& data) { return test::run_line(data, 3, options); });
      EXPECT_TRUE(report.pass || report.refused) << text << ' ' << backend << ' ' << target << ": " << report.failure;
    }
}

TEST(Segments, RowsInNoPartAreNotTouchedAndWrongTablesAreRefused) {
  std::vector<float> q(10 * 2 * 4, 0.5f), out(q.size(), -7.0f);
  const TensorView tensor(q.data(), DType::f32, {10, 2, 4}), result(out.data(), DType::f32, {10, 2, 4});
  std::vector<std::int64_t> table{2, 3, 0, 4, 0, 5, 0, 20, 20};
  const auto run = [&]() -> std::string {
    ForwardInputs in{.q = tensor, .k = tensor, .v = tensor};
    in.segments = Segments{TensorView(table.data(), DType::i64, {static_cast<std::int64_t>(table.size() / 9), 9})};
    try {
      forward({}, in, {.out = result});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(run(), "");
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i >= 16 && i < 40 ? 0.5f : -7.0f) << i;
  const auto refused = [&](std::vector<std::int64_t> wrong, const char* why) {
    table = std::move(wrong);
    EXPECT_NE(run().find(why), std::string::npos) << run();
  };
  refused({8, 3, 0, 4, 0, 5, 0, 20, 20}, "part 0 has 3 rows of q from 8; expected rows after 0 and up to 10");
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  refused({most, 3, 0, 4, 0, 5, 0, 20, 20}, "part 0 has 3 rows of q from 9223372036854775807");
  refused({0, 3, 0, 4, 0, most, 0, 20, 20}, "part 0 has 3 positions of q from 9223372036854775807");
  refused({0, 3, 0, 4, 1, 5, 0, 20, 20}, "part 0 is of sequence 1; expected 0 to 0");
  refused({0, 3, 0, 4, 0, 5, 0, 7, 20}, "part 0 has 3 positions of q from 5; expected 0 to its length 7");
  refused({0, 3, 0, 4, 0, 5, 0, 20, 20, 2, 3, 4, 4, 0, 5, 0, 20, 20}, "part 1 has 3 rows of q from 2; expected rows after 3");
  refused({0, 3, 0, 4, 0, 5, 0, 20, 20, 3, 3, 3, 4, 0, 5, 0, 20, 20}, "part 1 has 4 rows of kv from 3; expected rows after 4");
}

/// Heads and positions of other ranks count when it is decided which integers need 64 bits.
TEST(Segments, IntegersOfWholeProblemsMayBeLarge) {
  using namespace symbols;
  constexpr std::int64_t tokens = 4, heads = 2, dim = 4;
  std::vector<float> q(tokens * heads * dim, 0.5f), v(q.size());
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i);
  std::vector<std::int64_t> table{0, tokens, 0, tokens, 0, 40000, 0, 40004, 40004};
  for (const Expr& large : {head * 200000000, q_idx * 65536}) {
    std::vector<float> found[2];
    for (const bool exact : {false, true}) {
      std::vector<float>& out = found[exact];
      out.resize(q.size());
      const TensorView tensor(q.data(), DType::f32, {tokens, heads, dim});
      ForwardInputs in{.q = tensor, .k = tensor, .v = TensorView(v.data(), DType::f32, {tokens, heads, dim})};
      in.segments = Segments{.table = TensorView(table.data(), DType::i64, {1, 9}), .head_offset = 14, .heads_q = 16};
      const Attention attention{.score_mod = score + where(large % 3 == 1, to_real(kv_idx) * 0.5, 0.0)};
      forward(attention, in, {.out = TensorView(out.data(), DType::f32, {tokens, heads, dim})}, {},
              {.backend = exact ? "reference" : "cpu"});
    }
    for (std::size_t i = 0; i < q.size(); ++i) EXPECT_NEAR(found[0][i], found[1][i], 1e-5 * found[1][i]) << i;
  }
}

}  // namespace
}  // namespace foveal::dist
