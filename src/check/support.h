#pragma once
// The rows of the table that `foveal support` prints.
#include <span>

#include "problem/line.h"

namespace foveal::cli {

struct Feature {
  const char* name;
  const char* words;  ///< a problem line without pass and dtype
};
/// Each adds one feature to plain attention; the last combines several.
std::span<const Feature> features();

problem::Line line_of(const Feature& feature, Pass pass, DType dtype, const TargetInfo& target);
/// Does the target have a kernel for it? Asked without a GPU for CUDA targets.
bool plans(const problem::Line& line, const TargetInfo& target);

}  // namespace foveal::cli
