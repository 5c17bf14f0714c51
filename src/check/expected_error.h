#pragma once
// Sums with an estimate of their rounding error.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace foveal::check {

/// The gradient of one parameter, summed by rows and then over rows, which limits the error of long sums; and its expected error: roundings
/// within a row have common causes (delta, lse) and add up, those of different rows are independent.
template <class Real>
class ParamGradient {
 public:
  explicit ParamGradient(std::int64_t size)
      : size_(static_cast<std::size_t>(size)), total_(size_), row_(size_), row_error_(size_), variance_(size_) {}
  void add(std::int64_t element, Real value, double error) {
    if (size_ == 0) return;
    const auto i = static_cast<std::size_t>(element);
    if (row_error_[i] == 0) touched_.push_back(i);
    row_[i] += value;
    row_error_[i] += error;
  }
  void end_row() {
    for (const std::size_t i : touched_) {
      total_[i] += std::exchange(row_[i], Real(0));
      const double error = std::exchange(row_error_[i], 0);
      variance_[i] += error * error;
    }
    touched_.clear();
  }
  const std::vector<Real>& total() const { return total_; }
  std::vector<double> expected_error() const {
    std::vector<double> error(size_);
    for (std::size_t i = 0; i < size_; ++i) error[i] = std::sqrt(variance_[i]);
    return error;
  }

 private:
  std::size_t size_;
  std::vector<Real> total_, row_;
  std::vector<double> row_error_, variance_;
  std::vector<std::size_t> touched_;
};

/// A result and the square of its expected error, assuming that the roundings of its terms are independent.
template <class Real>
struct Sum {
  std::vector<Real> value, variance;

  void resize(std::int64_t size) { value.resize(static_cast<std::size_t>(size)), variance.resize(static_cast<std::size_t>(size)); }
  /// [at, at + size) += factor * from, for a factor with this error.
  void add(std::size_t at, Real factor, Real error, const Real* from, std::int64_t size) {
    Real *to = value.data() + at, *squares = variance.data() + at;
    for (std::int64_t i = 0; i < size; ++i) to[i] += factor * from[i];
    for (std::int64_t i = 0; i < size; ++i) squares[i] += (error * from[i]) * (error * from[i]);
  }
  std::vector<double> expected_error() const {
    std::vector<double> error(variance.size());
    for (std::size_t i = 0; i < error.size(); ++i) error[i] = std::sqrt(static_cast<double>(variance[i]));
    return error;
  }
};

}  // namespace foveal::check
