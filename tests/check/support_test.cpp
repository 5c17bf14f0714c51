// What `foveal support` says of this machine's CPU: a type that it names for a feature is computed right, and any other is refused.
#include "check/support.h"

#include <gtest/gtest.h>

#include "check/check.h"

namespace foveal::check {
namespace {

TEST(Support, WhatTheTableSaysOfCpusIsComputedRightAndNothingElseIs) {
  int computed = 0;
  for (const TargetInfo& target : targets()) {
    if (target.backend != "cpu" || !target.available) continue;
    for (const Feature& feature : features()) {
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        for (const Pass pass : {Pass::forward, Pass::backward}) {
          const problem::Line line = line_of(feature, pass, dtype, target);
          const Report report = check_line(line);
          EXPECT_TRUE(report.pass || report.refused) << target.target << ", " << feature.name << ": " << report.failure;
          EXPECT_EQ(report.refused, !plans(line, target)) << target.target << ", " << feature.name << ": " << report.failure;
          computed += report.pass;
        }
      }
    }
  }
  EXPECT_GT(computed, 100);
}

}  // namespace
}  // namespace foveal::check
