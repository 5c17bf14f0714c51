#include "check/compare.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/dtype.h"

namespace foveal::check {
namespace {

/// Error and size of a range of elements, over those whose exact value is finite.
struct Norms {
  double max_found = 0, max_naive = 0, max_exact = 0;
  double sum_found = 0, sum_naive = 0, sum_exact = 0;
  std::size_t count = 0;

  void add(double error, double exact, double naive_error) {
    max_found = std::max(max_found, error), max_naive = std::max(max_naive, naive_error), max_exact = std::max(max_exact, exact);
    sum_found += error * error, sum_naive += naive_error * naive_error, sum_exact += exact * exact;
    ++count;
  }
  double rms_found() const { return root(sum_found); }
  double rms_naive() const { return root(sum_naive); }
  double rms_exact() const { return root(sum_exact); }

 private:
  double root(double sum) const { return count == 0 ? 0 : std::sqrt(sum / static_cast<double>(count)); }
};

std::string at(std::size_t i, double found, double exact) {
  std::ostringstream text;
  text.precision(9);
  text << "element " << i << " is " << found << "; exact " << exact;
  return text.str();
}

}  // namespace

TensorReport compare(const std::string& name, DType dtype, const std::vector<double>& found, const std::vector<double>& exact,
                     const std::vector<double>& naive, const std::vector<double>* expected_error, std::size_t row_size) {
  TensorReport report;
  report.name = name;
  if (found.size() != exact.size() || naive.size() != exact.size()) {
    report.failure = "sizes differ";
    return report;
  }
  // The exact result is itself computed in fp64, and so has an error like the naive one's.
  const double factor = dtype == DType::f64 ? 4 : 2, ulp = base::epsilon(dtype) * (dtype == DType::f64 ? 4 : 1);
  Norms all;
  std::vector<Norms> rows(row_size == 0 ? 0 : exact.size() / row_size);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double expected = base::round_to(dtype, exact[i]);
    if (!std::isfinite(expected) || !std::isfinite(found[i])) {
      const bool same = std::isnan(expected) ? std::isnan(found[i]) : found[i] == expected;
      if (!same && report.failure.empty()) report.failure = at(i, found[i], exact[i]);
      continue;
    }
    double naive_error = std::abs((std::isfinite(naive[i]) ? naive[i] : expected) - exact[i]);
    if (expected_error != nullptr) naive_error = std::max(naive_error, (*expected_error)[i]);
    all.add(std::abs(found[i] - exact[i]), std::abs(exact[i]), naive_error);
    if (row_size != 0) rows[i / row_size].add(std::abs(found[i] - exact[i]), std::abs(exact[i]), naive_error);
  }
  report.max_error = all.max_found, report.naive_max_error = all.max_naive, report.rms_error = all.rms_found();
  report.max_bound = factor * all.max_naive + ulp * all.max_exact;
  report.rms_bound = factor * all.rms_naive() + ulp * all.rms_exact();
  if (report.failure.empty() && report.max_error > report.max_bound) report.failure = "largest error above its bound";
  if (report.failure.empty() && report.rms_error > report.rms_bound) report.failure = "rms error above its bound";

  // A single row's naive error may be small by luck (cancellation, a single key): four times the tensor's rule, and at least what the naive
  // error of the whole tensor allows.
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const double bound = 4 * (factor * rows[r].rms_naive() + factor * all.rms_naive() + ulp * rows[r].max_exact);
    if (rows[r].rms_found() == 0) continue;
    const double ratio = bound > 0 ? rows[r].rms_found() / bound : INFINITY;
    report.row_ratio = std::max(report.row_ratio, ratio);
    if (ratio > 1 && report.failure.empty()) report.failure = "row " + std::to_string(r) + ": rms error above its bound";
  }
  report.pass = report.failure.empty();
  return report;
}

}  // namespace foveal::check
