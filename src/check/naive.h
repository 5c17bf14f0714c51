#pragma once
// The unfused computation that a kernel is measured against: the same inputs, the same types, every score written down. 16-bit and fp32
// inputs accumulate in fp32, fp64 in fp64; P and dS are rounded to the input type; scores are evaluated in the accumulation type; results
// are rounded to their tensors' types. Its distance from the exact result is what the arithmetic costs without any fusing.
#include <map>
#include <string>
#include <vector>

#include "problem/case_data.h"

namespace foveal::check {

/// By role (out, lse; or dq, dk, dv) and "d" + name for each wanted parameter gradient: elements in row-major order of the logical tensor.
using Results = std::map<std::string, std::vector<double>>;

struct NaiveResults {
  Results values;
  /// What the roundings of its terms lead one to expect: the error of a single number in one computation is one draw and says little.
  Results expected_error;
};

NaiveResults naive(const problem::CaseData& data);

}  // namespace foveal::check
