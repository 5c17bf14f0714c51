#pragma once
// Runs a problem line on a backend and judges the result by the tolerance rule.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check/compare.h"
#include "problem/case_data.h"

namespace foveal::check {

struct Report {
  std::string line;
  std::string kernel;
  bool pass = false;
  bool refused = false;  ///< no backend can run the line: neither a pass nor a failure
  std::string failure;   ///< a refusal, an error, memory written outside the outputs, or which tensor is wrong
  std::vector<TensorReport> tensors;
};

/// Never throws for what the line does; a line that cannot be made real throws invalid_argument.
Report check_line(const problem::Line& line);

/// Checks on the line's backend and target, against exact results that were computed before.
class Checker {
 public:
  /// Computes the exact and the naive results once, for any number of backends.
  explicit Checker(const problem::Line& line) : Checker(problem::CaseData(line)) {}
  explicit Checker(problem::CaseData data);
  ~Checker();
  Report operator()(const PlanOptions& options) const;
  /// On whatever `run` does with the case; it gives the kernel's name.
  Report judge(const std::function<std::string(problem::CaseData&)>& run, const PlanOptions& options = {}) const;

 private:
  struct Known;
  std::unique_ptr<const Known> known_;
};

}  // namespace foveal::check
