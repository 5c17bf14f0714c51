#pragma once
// Where `check`, `bench` and `explain` get their problem lines from: arguments, suite files, and overrides on all of them.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "problem/line.h"

namespace foveal::cli {

struct LineOptions {
  std::vector<std::string> lines;    ///< each argument is one whole line
  std::vector<std::string> suites;   ///< files with one line each; '#' begins a comment
  std::vector<std::string> dtypes;   ///< run every line in each of these instead of its own
  std::vector<std::string> targets;  ///< ... and on each of these CPU targets; "all" for every one that is here
  PlanOptions plan;                  ///< over what the lines say, where set
  std::string match;                 ///< only lines that contain this text
};

void add_line_options(CLI::App& command, LineOptions& options);

/// The lines of the arguments and the suites. Throws invalid_argument naming the file and line number.
std::vector<problem::Line> read_lines(const LineOptions& options);
/// Each line in each type and on each target that is asked for.
std::vector<problem::Line> apply_overrides(const std::vector<problem::Line>& lines, const LineOptions& options);
inline std::vector<problem::Line> gather_lines(const LineOptions& options) { return apply_overrides(read_lines(options), options); }

/// The same parameters beside tensors of one token: for what only the mask and its data decide.
problem::Line parameters_alone(problem::Line line);

}  // namespace foveal::cli
