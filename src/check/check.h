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

/// Reports all failures of the run; throws invalid_argument only for a line that cannot be instantiated.
Report check_line(const problem::Line& line);

/// Checks a line on any backend, against exact results that are computed once.
class Checker {
 public:
  /// Computes the exact and the naive results.
  explicit Checker(const problem::Line& line) : Checker(problem::CaseData(line)) {}
  explicit Checker(problem::CaseData data);
  ~Checker();
  Report operator()(const PlanOptions& options) const;
  /// Judges the results of `run`, which returns the kernel's name.
  Report judge(const std::function<std::string(problem::CaseData&)>& run, const PlanOptions& options = {}) const;

 private:
  struct Known;
  std::unique_ptr<const Known> known_;
};

}  // namespace foveal::check
