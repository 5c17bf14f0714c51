// The scores and masks that people use, forward and backward, on every target of this machine.
#include "catalogue/catalogue.h"

#include <gtest/gtest.h>

#include <vector>

#include "check/check.h"

namespace foveal {
namespace {

std::vector<catalogue::Row> all_rows() {
  std::vector<catalogue::Row> rows(std::begin(catalogue::scores), std::end(catalogue::scores));
  rows.insert(rows.end(), std::begin(catalogue::learnable), std::end(catalogue::learnable));
  rows.insert(rows.end(), std::begin(catalogue::masks), std::end(catalogue::masks));
  return rows;
}

class Catalogue : public testing::TestWithParam<catalogue::Row> {
 protected:
  static void check_on_targets(const problem::Line& line) {
    const check::Checker check(line);
    for (const TargetInfo& target : targets()) {
      if (!target.available || target.backend == "cuda") continue;
      const check::Report report = check({.backend = target.backend, .target = target.target, .threads = 1, .executor = nullptr});
      if (report.refused && target.backend != "reference") continue;  // a target made for one type only
      EXPECT_TRUE(report.pass) << report.line << "\n" << report.failure;
      EXPECT_TRUE(report.kernel.starts_with(target.backend + ".")) << report.kernel;
    }
  }
};

TEST_P(Catalogue, BothPasses) {
  for (const char* dtype : {"f32 ", "bf16 ", "f16 ", "f64 "})
    for (const problem::Line& line : problem::parse_lines(std::string("both ") + dtype + GetParam().text)) check_on_targets(line);
}

INSTANTIATE_TEST_SUITE_P(Rows, Catalogue, testing::ValuesIn(all_rows()), [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace foveal
