// Every row of the catalogue through the public calls: the reference's gradients against finite differences in double, every backend and
// target against the exact results by the tolerance rule, with the kernel that ran, and equal bits over 20 runs on one and two threads.
#include "catalogue/catalogue.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "base/strided.h"
#include "check/check.h"
#include "foveal/foveal.h"
#include "problem/case_data.h"

namespace foveal {
namespace {

using problem::CaseData;
using problem::values_of;

const PlanOptions on_reference{.backend = "reference"};

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

/// The derivative along a random direction of one input, by central differences of two steps (error of the fourth order).
double derivative_along(CaseData& data, const TensorView& input, const std::vector<double>& direction, double h) {
  const std::vector<double> start = values_of(input);
  const auto at = [&](double step) {
    base::each_element(input, [&](std::int64_t i, std::int64_t offset) {
      static_cast<double*>(input.data)[offset] = start[static_cast<std::size_t>(i)] + step * direction[static_cast<std::size_t>(i)];
    });
    return objective(data);
  };
  const double result = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
  at(0);
  return result;
}

class Catalogue : public testing::TestWithParam<catalogue::Row> {};

TEST_P(Catalogue, GradientsOfTheReferenceEqualFiniteDifferences) {
  CaseData data(problem::parse_line(std::string("backward f64 ") + GetParam().text));
  objective(data);
  backward(data.line().attention, data.backward_inputs(), data.backward_outputs(), {}, on_reference);
  base::Random random(5);
  const auto check = [&](const std::string& name, const TensorView& input, const TensorView& gradient) {
    const std::vector<double> found = values_of(gradient);
    std::vector<double> direction(found.size());
    double along = 0, size = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      direction[i] = random.normal();
      along += found[i] * direction[i];
      size += std::abs(found[i] * direction[i]);
    }
    // A long step is exact to many digits; where it crosses a kink of the score a short one must do.
    double difference = 0, bound = 0;
    for (const auto& [step, tolerance] : {std::pair{1e-4, 1e-7}, std::pair{1e-6, 1e-6}}) {
      difference = along - derivative_along(data, input, direction, step);
      bound = tolerance * (1 + size);
      if (std::abs(difference) <= bound) break;
    }
    EXPECT_LE(std::abs(difference), bound) << name << ": " << along;
  };
  if (data.line().dq) check("dq", data.view("q"), data.view("dq"));
  if (data.line().dk) check("dk", data.view("k"), data.view("dk"));
  if (data.line().dv) check("dv", data.view("v"), data.view("dv"));
  for (std::size_t i = 0; i < data.line().params.size(); ++i)
    if (data.line().params[i].grad) check(data.line().params[i].param.name(), data.param(i), data.dparam(i));
}

std::vector<TargetInfo> cpu_targets() {
  std::vector<TargetInfo> available;
  for (const TargetInfo& info : targets())
    if (info.available && info.backend != "cuda") available.push_back(info);
  return available;
}

void judge(const problem::Line& line) {
  const check::Checker check(line);
  for (const TargetInfo& target : cpu_targets()) {
    const check::Report report = check({.backend = target.backend, .target = target.target, .threads = 2, .executor = nullptr});
    if (report.refused && target.backend != "reference") continue;  // a target without this type
    EXPECT_TRUE(report.pass) << report.line << "\n" << report.kernel << ": " << report.failure;
    EXPECT_TRUE(report.kernel.starts_with(target.backend + ".")) << report.kernel;
    if (target.target == "avx512" || target.target == "avx2" || target.target == "scalar") {
      EXPECT_TRUE(report.kernel.starts_with("cpu." + target.target + ".")) << report.kernel;
    }
  }
}

TEST_P(Catalogue, EveryTargetKeepsTheToleranceRule) {
  for (const char* dtype : {"f32", "f64", "bf16"}) {
    const problem::Line line = problem::parse_line(base::join("backward ", dtype, " ", GetParam().text));
    judge(line);
    if (std::string(dtype) != "f32") continue;  // a backward reads what its own forward wrote
    problem::Line only_forward = line;
    only_forward.pass = Pass::forward;
    judge(only_forward);
  }
}

/// Everything that a forward and a backward write.
std::vector<std::vector<double>> all_outputs(CaseData& data, const PlanOptions& options) {
  const problem::Line& line = data.line();
  forward(line.attention, data.forward_inputs(), data.forward_outputs(), {}, options);
  backward(line.attention, data.backward_inputs(), data.backward_outputs(), {}, options);
  std::vector<std::vector<double>> all;
  for (const char* role : {"out", "lse", "dq", "dk", "dv"})
    if (data.view(role).present()) all.push_back(values_of(data.view(role)));
  for (std::size_t i = 0; i < line.params.size(); ++i)
    if (line.params[i].grad) all.push_back(values_of(data.dparam(i)));
  return all;
}

TEST_P(Catalogue, EqualBitsOverRunsAndThreads) {
  for (const TargetInfo& target : cpu_targets()) {
    if (target.backend == "reference") continue;
    CaseData data(problem::parse_line(std::string("backward f32 ") + GetParam().text));
    const auto options = [&](int threads) {
      return PlanOptions{.backend = target.backend, .target = target.target, .threads = threads, .executor = nullptr};
    };
    const auto first = all_outputs(data, options(1));
    for (int run = 1; run < 20; ++run) {
      const auto again = all_outputs(data, options(1 + run % 2));
      ASSERT_EQ(first.size(), again.size());
      for (std::size_t i = 0; i < first.size(); ++i)
        for (std::size_t k = 0; k < first[i].size(); ++k)  // NaN too must come again
          ASSERT_TRUE(first[i][k] == again[i][k] || (std::isnan(first[i][k]) && std::isnan(again[i][k])))
              << target.target << " run " << run;
    }
  }
}

std::string name_of(const testing::TestParamInfo<catalogue::Row>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Scores, Catalogue, testing::ValuesIn(catalogue::scores), name_of);
INSTANTIATE_TEST_SUITE_P(Learnable, Catalogue, testing::ValuesIn(catalogue::learnable), name_of);
INSTANTIATE_TEST_SUITE_P(Masks, Catalogue, testing::ValuesIn(catalogue::masks), name_of);

}  // namespace
}  // namespace foveal
