#pragma once
#include "problem/line_problem.h"

namespace foveal::test {

inline problem::Problem problem_of(const std::string& text) {
  return problem::problem_of(problem::parse_line(text), {DeviceKind::cuda, 0});
}

}  // namespace foveal::test
