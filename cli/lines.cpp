#include "lines.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "base/dtype.h"
#include "base/text_file.h"
#include "command.h"
#include "validators.h"

namespace foveal::cli {
namespace {

std::vector<std::string> read_suite(const std::string& path) {
  std::vector<std::string> lines = base::read_text_lines(path, path, "a file of problem lines");
  constexpr std::string_view mark = "\xEF\xBB\xBF";  // with which some editors begin files of UTF-8
  if (!lines.empty() && lines.front().starts_with(mark)) lines.front().erase(0, mark.size());
  return lines;
}

bool is_comment(const std::string& line) {
  const std::size_t first = line.find_first_not_of(" \t\r");
  return first == std::string::npos || line[first] == '#';
}

DType parse_floating(const std::string& name) {
  const auto dtype = base::parse_dtype(name);
  FOVEAL_CHECK(dtype && is_floating(*dtype), "--dtype: '", name, "'; expected f64, f32, bf16 or f16");
  return *dtype;
}

// Parameters of the default dtype follow the line's.
problem::Line with_dtype(problem::Line line, DType dtype) {
  const DType before = problem::default_dtype(Type::real, line.dtype), after = problem::default_dtype(Type::real, dtype);
  for (problem::ParamLine& param : line.params) {
    if (param.dtype == before) param.dtype = after;
    if (param.grad_dtype == before) param.grad_dtype = after;
  }
  line.dtype = dtype;
  return line;
}

std::vector<std::string> cpu_targets(const std::vector<std::string>& asked) {
  if (asked != std::vector<std::string>{"all"}) {
    FOVEAL_CHECK(std::ranges::find(asked, "all") == asked.end(), "--target: all beside others; expected it alone");
    return asked;
  }
  std::vector<std::string> names;
  for (const TargetInfo& target : targets()) {
    if (target.backend == "cpu" && target.available) names.push_back(target.target);
  }
  return names;
}

}  // namespace

void add_line_options(CLI::App& command, LineOptions& options) {
  command.add_option("lines", options.lines,
                     "problem lines, each one quoted argument: 'backward bf16 b2 h12:4 q1024 d64 mask=\"causal()\"'");
  command.add_option("--suite", options.suites, "files of problem lines")->allow_extra_args(false);
  command.add_option("--match", options.match, "only lines that contain this text");
  command.add_option("--dtype", options.dtypes, "in each of these types instead of the line's own")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option("--target", options.targets, "on each of these targets; all: every CPU target of this machine")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option("--backend", options.plan.backend, "reference, cpu or cuda; default: the first that can");
  command.add_option("--threads", options.plan.threads, "CPU threads; default: all")->check(whole_number(0, 4096));
}

std::vector<problem::Line> read_lines(const LineOptions& options) {
  std::vector<problem::Line> lines;
  const auto take = [&](const std::string& text) {
    if (is_comment(text) || text.find(options.match) == std::string::npos) return;
    std::ranges::move(problem::parse_lines(text), std::back_inserter(lines));
  };
  for (const std::string& text : options.lines) take(text);
  for (const std::string& path : options.suites) {
    std::int64_t number = 0;
    for (const std::string& text : read_suite(path)) {
      ++number;
      try {
        take(text);
      } catch (const Error& error) {
        base::fail(error.code(), path, ":", number, ": ", error.what());
      }
    }
  }
  return lines;
}

std::vector<problem::Line> apply_overrides(const std::vector<problem::Line>& lines, const LineOptions& options) {
  std::vector<problem::Line> result;
  const std::vector<std::string> on = cpu_targets(options.targets);
  for (const problem::Line& line : lines) {
    std::vector<problem::Line> typed;
    for (const std::string& name : options.dtypes) typed.push_back(with_dtype(line, parse_floating(name)));
    if (typed.empty()) typed.push_back(line);
    for (problem::Line& each : typed) {
      if (!options.plan.backend.empty()) each.options.backend = options.plan.backend;
      if (options.plan.threads > 0) each.options.threads = options.plan.threads;
      for (const std::string& target : on) {
        each.options.target = target;
        result.push_back(each);
      }
      if (on.empty()) result.push_back(std::move(each));
    }
  }
  return result;
}

void check_any(const std::vector<problem::Line>& lines, const LineOptions& options, const char* subcommand, const char* expected) {
  const std::string such = options.match.empty() ? "" : base::join(" that contains '", options.match, "' (--match)");
  FOVEAL_CHECK(!lines.empty(), subcommand, ": no problem line given", such, "; expected ", expected);
}

std::vector<problem::Line> gather_lines(const LineOptions& options, const char* subcommand) {
  std::vector<problem::Line> lines = apply_overrides(read_lines(options), options);
  check_any(lines, options, subcommand, "at least one");
  return lines;
}

namespace {

problem::Line of_one_token(problem::Line line) {
  line.varlen = false, line.page_size = 0, line.batch = 1, line.seqlen_q = line.seqlen_kv = 1, line.strides.clear(), line.lengths.clear();
  return line;
}

}  // namespace

ParamData::ParamData(problem::Line line) : data_(of_one_token(std::move(line))) {}

std::vector<TensorView> ParamData::views() const {
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < data_.line().params.size(); ++i) views.push_back(data_.param(i));
  return views;
}

}  // namespace foveal::cli
