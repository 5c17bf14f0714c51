#pragma once
// Problem lines from arguments and suite files, with overrides, for the subcommands that take lines.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "problem/case_data.h"

namespace foveal::cli {

struct LineOptions {
  std::vector<std::string> lines;    ///< one line per argument
  std::vector<std::string> suites;   ///< files with one line per line; '#' begins a comment
  std::vector<std::string> dtypes;   ///< run every line in each of these instead of its own dtype
  std::vector<std::string> targets;  ///< and on each of these targets; "all": every available CPU target
  PlanOptions plan;                  ///< override the lines' backend and threads if set
  std::string match;                 ///< only lines that contain this text
};

void add_line_options(CLI::App& command, LineOptions& options);

/// The lines of arguments and suites. Throws invalid_argument with file and line number.
std::vector<problem::Line> read_lines(const LineOptions& options);
/// Every line in every requested dtype and on every requested target.
std::vector<problem::Line> apply_overrides(const std::vector<problem::Line>& lines, const LineOptions& options);
/// Throws invalid_argument, naming the subcommand, if there are no lines.
void check_any(const std::vector<problem::Line>& lines, const LineOptions& options, const char* subcommand, const char* expected);
/// All of this. Throws invalid_argument, naming the subcommand, if there are no lines.
std::vector<problem::Line> gather_lines(const LineOptions& options, const char* subcommand);

/// The data of the line's parameters, beside tensors of one token: all that masks depend on.
class ParamData {
 public:
  explicit ParamData(problem::Line line);
  std::vector<TensorView> views() const;

 private:
  problem::CaseData data_;
};

}  // namespace foveal::cli
