#pragma once
// Laws hold on every target: each test here runs once for each backend and target that this machine has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "check/run.h"
#include "problem/case_data.h"

namespace foveal::laws {

using problem::CaseData;
using problem::Line;
using problem::parse_line;
using problem::set_values;
using problem::values_of;
using Values = std::vector<double>;

class Laws : public testing::TestWithParam<TargetInfo> {
 protected:
  PlanOptions options(int threads = 1) const {
    return {.backend = GetParam().backend, .target = GetParam().target, .threads = threads, .executor = nullptr};
  }

  /// A case of this target's device, filled but not run.
  CaseData make(const std::string& text) const {
    Line line = parse_line(text);
    if (GetParam().backend == "cuda") line.device.kind = DeviceKind::cuda;
    return CaseData(line);
  }

  /// False, and the test is skipped, when the target declines the problem. A CPU target declines nothing but types it is not made for.
  bool run(CaseData& data, int threads = 1) const {
    try {
      const std::string kernel = check::run_case(data, options(threads));
      EXPECT_TRUE(kernel.starts_with(GetParam().backend + ".")) << kernel;
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      EXPECT_NE(GetParam().backend, "reference") << error.what();
      return false;
    }
  }
};

#define RUN_OR_SKIP(...) \
  if (!run(__VA_ARGS__)) GTEST_SKIP() << "declined"

inline std::vector<TargetInfo> available_targets() {
  std::vector<TargetInfo> available;
  for (const TargetInfo& info : targets())
    if (info.available) available.push_back(info);
  return available;
}

inline std::string target_name(const testing::TestParamInfo<TargetInfo>& info) { return info.param.backend + "_" + info.param.target; }

#define FOVEAL_LAWS(suite) \
  INSTANTIATE_TEST_SUITE_P(Targets, suite, testing::ValuesIn(foveal::laws::available_targets()), foveal::laws::target_name)

inline const std::vector<std::string>& result_names(const CaseData& data) {
  static const std::vector<std::string> forward{"out", "lse"}, backward{"dq", "dk", "dv"};
  return data.line().pass == Pass::forward ? forward : backward;
}

/// Every result of the pass, in one list: to compare two runs bit by bit (NaN equals NaN).
inline std::vector<std::uint64_t> bits_of_results(const CaseData& data) {
  std::vector<std::uint64_t> bits;
  const auto add = [&](const TensorView& view) {
    if (!view.present()) return;
    for (const double value : values_of(view)) {
      bits.emplace_back();
      std::memcpy(&bits.back(), &value, sizeof(value));
    }
  };
  for (const std::string& name : result_names(data)) add(data.view(name));
  if (data.line().pass == Pass::backward)
    for (std::size_t i = 0; i < data.line().params.size(); ++i) add(data.dparam(i));
  return bits;
}

inline double worst_difference(const Values& a, const Values& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] == b[i]) continue;  // equal infinities too
    const double difference = std::abs(a[i] - b[i]);
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
  }
  return worst;
}

}  // namespace foveal::laws
