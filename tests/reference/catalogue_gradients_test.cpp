// Every gradient of every score and mask that people use: along random directions, the reference's gradients against central differences in
// double.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "catalogue/catalogue.h"
#include "problem/case_data.h"

namespace foveal {
namespace {

using problem::CaseData;
using problem::parse_line;
using problem::set_values;
using problem::values_of;
using Values = std::vector<double>;

const PlanOptions on_reference{.backend = "reference", .target = "", .threads = 1, .executor = nullptr};

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double objective(const CaseData& data) {
  forward(data.line().attention, data.forward_inputs(), data.forward_outputs(), {}, on_reference);
  Values lse = values_of(data.view("lse"));
  for (double& value : lse)
    if (!std::isfinite(value)) value = 0;  // a row without keys is constant
  return dot(values_of(data.view("out")), values_of(data.view("dout"))) + dot(lse, values_of(data.view("dlse")));
}

class CatalogueGradients : public testing::TestWithParam<catalogue::Row> {
 protected:
  static void expect_gradient(const CaseData& data, const TensorView& input, const TensorView& gradient, const std::string& name) {
    const Values at = values_of(input), found = values_of(gradient);
    base::Random random(5);
    for (int direction = 0; direction < 2; ++direction) {
      Values step(at.size());
      for (double& value : step) value = random.normal();
      const auto moved = [&](double length) {
        Values there = at;
        for (std::size_t i = 0; i < at.size(); ++i) there[i] += length * step[i];
        set_values(input, there);
        return objective(data);
      };
      const double length = 1e-6, expected = (moved(length) - moved(-length)) / (2 * length);
      set_values(input, at);
      const double size = std::sqrt(dot(found, found)) + 1;
      EXPECT_NEAR(dot(found, step), expected, 2e-6 * size) << name;
    }
  }
};

TEST_P(CatalogueGradients, EqualDifferencesAlongRandomDirections) {
  // Its mask depends on the score itself: not differentiable where the comparison turns.
  if (GetParam().name == std::string("padded_dense_causal")) GTEST_SKIP() << "jumps";
  problem::Line line = parse_line(std::string("backward f64 ") + GetParam().text);
  line.dlse = true;
  const CaseData data(line);
  objective(data);
  backward(data.line().attention, data.backward_inputs(), data.backward_outputs(), {}, on_reference);
  for (const char* role : {"q", "k", "v"})
    if (const TensorView gradient = data.view(std::string("d") + role); gradient.present())
      expect_gradient(data, data.view(role), gradient, role);
  for (std::size_t i = 0; i < data.line().params.size(); ++i)
    if (data.line().params[i].grad) expect_gradient(data, data.param(i), data.dparam(i), data.line().params[i].param.name());
}

std::vector<catalogue::Row> all_rows() {
  std::vector<catalogue::Row> rows(std::begin(catalogue::scores), std::end(catalogue::scores));
  rows.insert(rows.end(), std::begin(catalogue::learnable), std::end(catalogue::learnable));
  rows.insert(rows.end(), std::begin(catalogue::masks), std::end(catalogue::masks));
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Rows, CatalogueGradients, testing::ValuesIn(all_rows()),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace foveal
