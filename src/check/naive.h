#pragma once
// The unfused computation that kernels are compared with: the same inputs and types, with all scores materialised. 16-bit and fp32 inputs
// accumulate in fp32, fp64 in fp64; P and dS are rounded to the input type; scores are evaluated in the accumulation type; results are
// rounded to their tensors' types. Its error is what the arithmetic costs without fusion.
#include <map>
#include <string>
#include <vector>

#include "problem/case_data.h"

namespace foveal::check {

/// By role (out, lse; or dq, dk, dv) and "d" + name for each wanted parameter gradient: elements in row-major order of the logical tensor.
using Results = std::map<std::string, std::vector<double>>;

struct NaiveResults {
  Results values;
  /// Estimated from the roundings of the terms: the actual error of a single number is one sample, and may be small by luck.
  Results expected_error;
};

NaiveResults naive(const problem::CaseData& data);

}  // namespace foveal::check
