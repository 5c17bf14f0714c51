#pragma once
// The tolerance rule: error against fp64 at most twice that of the naive same-precision computation, plus one unit in the last place.
#include <string>
#include <vector>

#include "foveal/tensor.h"

namespace foveal::check {

struct TensorReport {
  std::string name;
  double max_error = 0, max_bound = 0;  ///< largest distance from the exact result
  double rms_error = 0, rms_bound = 0;
  double row_ratio = 0;  ///< the worst row's error over its bound
  double naive_max_error = 0;
  bool pass = false;
  std::string failure;  ///< what is wrong, and where; empty when nothing is
};

/// All in row-major order. Rows of `row_size` elements are also judged one by one, so that a bad row cannot hide behind large ones.
/// expected_error: null, or a lower bound of the naive error of each element.
TensorReport compare(const std::string& name, DType dtype, const std::vector<double>& found, const std::vector<double>& exact,
                     const std::vector<double>& naive, const std::vector<double>* expected_error, std::size_t row_size);

}  // namespace foveal::check
