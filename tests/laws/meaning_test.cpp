// What masks, scores, scale, dropout, sinks and gradients mean, said by pairs of calls that must agree.
#include <limits>

#include "base/philox.h"
#include "laws.h"

namespace foveal::laws {
namespace {

class Meaning : public Laws {};
FOVEAL_LAWS(Meaning);

TEST_P(Meaning, AMaskIsAScoreOfMinusInfinity) {
  CaseData masked = make("backward f32 b1 h2 q45 d32 mask=\"causal()\"");
  CaseData scored = make("backward f32 b1 h2 q45 d32 score=\"where(kv_idx <= q_idx, score, log(0))\"");
  RUN_OR_SKIP(masked);
  RUN_OR_SKIP(scored);
  for (const char* role : {"out", "lse", "dq", "dk", "dv"})
    EXPECT_LT(worst_difference(values_of(masked.view(role)), values_of(scored.view(role))), 1e-6) << role;
}

TEST_P(Meaning, ScaleMultipliesTheProduct) {
  for (const char* dtype : {"f32", "bf16"}) {
    CaseData once = make(std::string("forward ") + dtype + " b1 h2 q33 d64 scale=0.125"),
             twice = make(std::string("forward ") + dtype + " b1 h2 q33 d64 scale=0.25");
    Values halved = values_of(once.view("q"));
    for (double& value : halved) value /= 2;
    set_values(twice.view("q"), halved);
    RUN_OR_SKIP(once);
    RUN_OR_SKIP(twice);
    EXPECT_EQ(bits_of_results(once), bits_of_results(twice)) << dtype;
  }
}

TEST_P(Meaning, GradientsAreLinearInDout) {
  CaseData once = make("backward f32 b1 h2 q33 d32 mask=\"causal()\" score=\"score + b[head] * kv_idx\" param=\"b: real[2] grad\"");
  CaseData twice = make("backward f32 b1 h2 q33 d32 mask=\"causal()\" score=\"score + b[head] * kv_idx\" param=\"b: real[2] grad\"");
  Values doubled = values_of(once.view("dout"));
  for (double& value : doubled) value *= 2;
  set_values(twice.view("dout"), doubled);
  RUN_OR_SKIP(once);
  RUN_OR_SKIP(twice);
  const auto expect_doubled = [](const TensorView& a, const TensorView& b, const char* name) {
    Values expected = values_of(a);
    for (double& value : expected) value *= 2;
    EXPECT_EQ(expected, values_of(b)) << name;
  };
  for (const char* role : {"dq", "dk", "dv"}) expect_doubled(once.view(role), twice.view(role), role);
  expect_doubled(once.dparam(0), twice.dparam(0), "b");
}

TEST_P(Meaning, AddingAConstantToARowChangesOnlyLse) {
  CaseData plain = make("forward f32 b1 h2 q40 d32"), shifted = make("forward f32 b1 h2 q40 d32 score=\"score + 0.25 * q_idx\"");
  RUN_OR_SKIP(plain);
  RUN_OR_SKIP(shifted);
  EXPECT_LT(worst_difference(values_of(plain.view("out")), values_of(shifted.view("out"))), 1e-5);
  Values expected = values_of(plain.view("lse"));
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += 0.25 * static_cast<double>(i % 40);
  EXPECT_LT(worst_difference(expected, values_of(shifted.view("lse"))), 1e-5);
}

TEST_P(Meaning, RowsWithoutKeysAreZero) {
  for (const char* dtype : {"f32", "bf16", "f16", "f64"}) {
    // Queries 10 to 29 attend to nothing; whole tiles of them and parts of tiles.
    CaseData data = make(std::string("backward ") + dtype +
                         " b2 h2 q150:70 d32 mask=\"(q_idx < 10) | ((q_idx >= 30) & (q_idx < 77)) | (q_idx == 140)\" dlse");
    RUN_OR_SKIP(data);
    const auto empty = [](std::size_t q) { return !(q < 10 || (q >= 30 && q < 77) || q == 140); };
    const Values out = values_of(data.view("out")), lse = values_of(data.view("lse")), dq = values_of(data.view("dq"));
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t q = i / (2 * 32) % 150;
      ASSERT_EQ(out[i] == 0, empty(q)) << dtype << " q " << q;
      if (empty(q)) {
        ASSERT_EQ(dq[i], 0) << dtype << " q " << q;
      }
    }
    for (std::size_t i = 0; i < lse.size(); ++i) ASSERT_EQ(lse[i] == -std::numeric_limits<double>::infinity(), empty(i % 150)) << dtype;
    for (const char* role : {"dk", "dv"})
      for (const double value : values_of(data.view(role))) ASSERT_TRUE(std::isfinite(value)) << dtype << " " << role;
  }
}

TEST_P(Meaning, WhatIsMaskedMayBeNaN) {
  for (const char* dtype : {"f32", "bf16", "f16", "f64"}) {
    const std::string problem = std::string("backward ") + dtype + " b2 h2 q70 d32 mask=\"padding(len)\" param=\"len: integer[2]\"";
    CaseData clean = make(problem), dirty = make(problem);
    const Values lengths{23, 64};
    for (CaseData* data : {&clean, &dirty}) set_values(data->param(0), lengths);
    for (const char* role : {"q", "k", "v", "dout"}) {
      Values values = values_of(clean.view(role));
      for (std::size_t i = 0; i < values.size(); ++i)
        if (static_cast<double>(i / (2 * 32) % 70) >= lengths[i / (2 * 32 * 70)]) values[i] = std::numeric_limits<double>::quiet_NaN();
      set_values(dirty.view(role), values);
    }
    RUN_OR_SKIP(clean);
    RUN_OR_SKIP(dirty);
    // With AMX a NaN in v, hidden or not, sends the call to a kernel that rounds in another order.
    const bool same_kernel = GetParam().target != "amx" || std::string(dtype) != "bf16";
    if (same_kernel) {
      EXPECT_EQ(bits_of_results(clean), bits_of_results(dirty)) << dtype;
    }
    for (const char* role : {"out", "dq", "dk", "dv"}) {
      EXPECT_LT(worst_difference(values_of(clean.view(role)), values_of(dirty.view(role))), same_kernel ? 1e-12 : 0.02)
          << dtype << " " << role;
      for (const double value : values_of(dirty.view(role))) ASSERT_TRUE(std::isfinite(value)) << dtype << " " << role;
    }
  }
}

TEST_P(Meaning, DropoutFallsWherePhiloxSays) {
  // v is the identity, so that out holds the weights themselves: zero exactly where a pair is dropped.
  constexpr std::size_t heads = 3, seqlen = 40;
  CaseData data = make("forward f32 b2 h3 q40 d16:40 dropout=0.4:123456789012345:77 q_offset=5 kv_offset=9");
  Values identity(2 * seqlen * heads * seqlen);
  for (std::size_t i = 0; i < identity.size(); ++i) identity[i] = i / (heads * seqlen) % seqlen == i % seqlen;
  set_values(data.view("v"), identity);
  CaseData whole = make("forward f32 b2 h3 q40 d16:40 q_offset=5 kv_offset=9");
  for (const char* role : {"q", "k", "v"}) set_values(whole.view(role), values_of(data.view(role)));
  RUN_OR_SKIP(data);
  RUN_OR_SKIP(whole);
  const Values weights = values_of(data.view("out")), undropped = values_of(whole.view("out"));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::size_t kv = i % seqlen, head = i / seqlen % heads, q = i / (seqlen * heads) % seqlen, batch = i / (seqlen * heads * seqlen);
    const bool kept =
        base::dropout_bits(123456789012345u, 77, static_cast<std::uint32_t>(batch * heads + head), static_cast<std::uint32_t>(q + 5),
                           static_cast<std::uint32_t>(kv + 9)) >= base::dropout_threshold(0.4);
    ASSERT_EQ(weights[i] != 0, kept) << "batch " << batch << " head " << head << " q " << q << " kv " << kv;
    ASSERT_NEAR(weights[i], kept ? undropped[i] / 0.6 : 0, 1e-5);
  }
  EXPECT_EQ(values_of(data.view("lse")), values_of(whole.view("lse")));
}

TEST_P(Meaning, OnePlanDropsByTheNumbersOfEachRun) {
  const std::string line = "backward f32 b2 h2 q70 d16 param=\"t: real[70] grad\" score=\"score + t[kv_idx]\" dropout=0.3";
  const auto results = [&](const std::string& numbers) {
    CaseData data = make(line + numbers);
    return run(data) ? bits_of_results(data) : decltype(bits_of_results(data)){};
  };
  const auto first = results(":7:9");
  if (first.empty()) GTEST_SKIP() << "declined";
  EXPECT_EQ(results(":7:9:memory"), first);
  const auto high = results(":18446744073709551615:18446744073709551614");
  EXPECT_EQ(results(":18446744073709551615:18446744073709551614:memory"), high);
  EXPECT_NE(first, high);
  EXPECT_NE(results(":8:9"), first);
  EXPECT_NE(results(":7:10"), first);
}

TEST_P(Meaning, ASinkIsAKeyWithoutAValue) {
  // The same logit from a real key whose value is zero, put in front of the others.
  constexpr std::size_t seqlen = 30, dim = 16;
  CaseData sink = make("forward f32 b1 h1 q30 d16 sink=s param=\"s: real[1] constant(0.75)\"");
  CaseData key = make("forward f32 b1 h1 q30:31 d16 score=\"where(kv_idx == 0, 0.75, score)\"");
  set_values(key.view("q"), values_of(sink.view("q")));
  for (const char* role : {"k", "v"}) {
    Values values(dim);
    const Values rest = values_of(sink.view(role));
    values.insert(values.end(), rest.begin(), rest.end());
    set_values(key.view(role), values);
  }
  RUN_OR_SKIP(sink);
  RUN_OR_SKIP(key);
  EXPECT_LT(worst_difference(values_of(sink.view("out")), values_of(key.view("out"))), 1e-5);
  EXPECT_LT(worst_difference(values_of(sink.view("lse")), values_of(key.view("lse"))), 1e-5);
  EXPECT_EQ(values_of(sink.view("lse")).size(), seqlen);
}

TEST_P(Meaning, StrategiesAgree) {
  Values reference_dq;
  for (const char* strategy : {"fused", "split", "two_scan"}) {
    CaseData data = make(std::string("backward f32 b2 h4:2 q130:90 d64 mask=\"causal_bottom_right()\" strategy=") + strategy);
    RUN_OR_SKIP(data);
    const Values dq = values_of(data.view("dq"));
    if (reference_dq.empty()) reference_dq = dq;
    EXPECT_LT(worst_difference(dq, reference_dq), 2e-5) << strategy;
  }
}

}  // namespace
}  // namespace foveal::laws
