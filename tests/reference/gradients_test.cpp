// Every gradient of the reference against central differences in double: q, k, v, the sink and each parameter, for scores that read them in
// every way.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/strided.h"
#include "problem/case_data.h"

namespace foveal {
namespace {

using problem::CaseData;
using problem::Line;
using problem::parse_line;
using problem::values_of;

const PlanOptions on_reference{.backend = "reference", .target = "", .threads = 1, .executor = nullptr};

/// sum(out * dout) + sum(lse * dlse): what backward() differentiates.
double objective(CaseData& data) {
  forward(data.line().attention, data.forward_inputs(), data.forward_outputs(), {}, on_reference);
  double sum = 0;
  const auto add = [&](const char* value, const char* weight) {
    const std::vector<double> a = values_of(data.view(value)), b = values_of(data.view(weight));
    for (std::size_t i = 0; i < a.size(); ++i)
      if (std::isfinite(a[i])) sum += a[i] * b[i];  // lse of a row without keys is -inf and constant
  };
  add("out", "dout");
  if (data.line().dlse) add("lse", "dlse");
  return sum;
}

/// Largest distance between `gradient` and central differences in every element of `input`.
double worst_distance(CaseData& data, const TensorView& input, const TensorView& gradient) {
  const std::vector<double> found = values_of(gradient);
  double worst = 0;
  base::each_element(input, [&](std::int64_t i, std::int64_t offset) {
    double& element = static_cast<double*>(input.data)[offset];
    const double value = element, step = 1e-5;
    element = value + step;
    const double above = objective(data);
    element = value - step;
    const double below = objective(data);
    element = value;
    const double expected = (above - below) / (2 * step);
    worst = std::max(worst, std::abs(found[static_cast<std::size_t>(i)] - expected) / (1 + std::abs(expected)));
  });
  return worst;
}

class Gradients : public testing::TestWithParam<const char*> {};

TEST_P(Gradients, EqualCentralDifferences) {
  CaseData data(parse_line(GetParam()));
  const Line& line = data.line();
  objective(data);
  backward(line.attention, data.backward_inputs(), data.backward_outputs(), {}, on_reference);
  constexpr double bound = 1e-8;
  EXPECT_LT(worst_distance(data, data.view("q"), data.view("dq")), bound) << "dq";
  EXPECT_LT(worst_distance(data, data.view("k"), data.view("dk")), bound) << "dk";
  EXPECT_LT(worst_distance(data, data.view("v"), data.view("dv")), bound) << "dv";
  for (std::size_t i = 0; i < line.params.size(); ++i) {
    if (!line.params[i].grad) continue;
    EXPECT_LT(worst_distance(data, data.param(i), data.dparam(i)), bound) << line.params[i].param.name();
    double largest = 0;
    for (const double value : values_of(data.dparam(i))) largest = std::max(largest, std::abs(value));
    EXPECT_GT(largest, 1e-3) << line.params[i].param.name() << ": a gradient of zero would prove nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Lines, Gradients,
    testing::Values(
        "backward f64 b2 h4:2 q5:7 d3:4", "backward f64 b1 h2 q6:4 d4 mask=\"kv_idx <= q_idx\" dlse",
        "backward f64 b1 h2 q4:6 d4 scale=0.7 mask=\"kv_idx > q_idx + 1\" layout=bhsd", "backward f64 b1 h2 q5 d4 dropout=0.3:17:5",
        "backward f64 b1 h3 q5 d4 param=\"s: real[3] grad\" sink=s dlse mask=\"q_idx > kv_idx\"",
        "backward f64 b2 h2 q5:6 d3 score=\"score + bias[q_idx, kv_idx]\" param=\"bias: real[5, 6] grad\"",
        "backward f64 b2 h2 q6 d3 score=\"score + rel[head, clamp(kv_idx - q_idx, -2, 2) + 2]\" param=\"rel: real[2, 5] grad\"",
        "backward f64 b1 h2 q6 d3 score=\"score + bias[q_idx] * bias[kv_idx]\" param=\"bias: real[6] grad\"",
        "backward f64 b1 h2 q6 d3 score=\"score + t[i[q_idx]] * t[i[kv_idx]] + t[2]\" param=\"t: real[4] grad\" param=\"i: integer[6] "
        "integers(0, 3)\" dlse",
        "backward f64 b1 h2 q6 d3 score=\"score * sigmoid(gate[head]) + 0.1 * gate[head] * kv_idx\" param=\"gate: real[2] grad\"",
        "backward f64 b1 h1 q6 d3 score=\"cap[] * tanh(score / cap[])\" param=\"cap: real[] uniform(2, 3) grad\"",
        "backward f64 b2 h2 q4 d3 score=\"score * m[batch, head] + b[batch, head, q_idx, kv_idx]\" param=\"m: real[2, 2] grad\" param=\"b: "
        "real[2, 2, 4, 4] grad\"",
        "backward f64 b1 h2 q5 d3 score=\"where(kv_idx > q_idx, score * a[0], score / (2 + a[1] * a[1]))\" param=\"a: real[2] grad\"",
        "backward f64 h2 d3 lengths=3:4,1:2,5:5 score=\"score + rel[clamp(kv_idx - q_idx, -2, 2) + 2]\" mask=\"kv_idx <= q_idx\" "
        "param=\"rel: real[5] grad\"",
        "backward f64 b1 h2:1 q4:5 d3 q_offset=3 kv_offset=2 score=\"score + bias[q_idx] + w[kv_idx] * score\" mask=\"kv_idx <= q_idx\" "
        "param=\"bias: real[7] grad\" "
        "param=\"w: real[7] grad\" dlse",
        "backward f64 b1 h2 q5 d3 layout=dim_first score=\"score + exp(w[head] * abs(q_idx - kv_idx))\" param=\"w: real[2] uniform(-1, "
        "-0.1) grad\"",
        "backward f64 b1 h3:3 q5 d3 layout=packed_qkv score=\"score - x[q_idx, 0] * y[kv_idx, 1] + pow(z[], 3) * score\" param=\"x: "
        "real[5, 1] grad\" "
        "param=\"y: real[5, 2] grad\" param=\"z: real[] grad\""));

/// Equal weights that are no power of two are rounded alike at each step of a sum, which shows what the sum is kept in.
TEST(ReferenceRows, AreSummedWiderThanTheirTerms) {
  CaseData data(parse_line("forward f64 b1 h1 q1:32768 d8 score=\"where(kv_idx == 0, 0.1, 0)\""));
  forward(data.line().attention, data.forward_inputs(), data.forward_outputs(), {}, on_reference);
  const long double largest = 0.1, expected = largest + std::log(1 + 32767 * std::exp(-largest));
  EXPECT_NEAR(values_of(data.view("lse"))[0], static_cast<double>(expected), 4e-15);  // two units in the last place
}

}  // namespace
}  // namespace foveal
