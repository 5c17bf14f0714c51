#pragma once
// Which features each target takes, as the backends answer: the table that `foveal support` prints and docs/support.md shows.
#include <span>
#include <string>

#include "problem/line.h"

namespace foveal::check {

struct Feature {
  const char* name;
  const char* words;  ///< a problem line without pass and dtype
};
/// Each adds one feature to plain attention; the last combines several.
std::span<const Feature> features();

problem::Line line_of(const Feature& feature, Pass pass, DType dtype, const TargetInfo& target);
/// Does the target have a kernel for it? Asked without a GPU for CUDA targets.
bool plans(const problem::Line& line, const TargetInfo& target);

/// A Markdown table with a column for each target of this machine and for those for GPUs.
std::string support_table();

}  // namespace foveal::check
