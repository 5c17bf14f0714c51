// foveal check: problem lines against the reference, by the tolerance rule.
#include "check/check.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "command.h"
#include "files/files.h"
#include "json.h"
#include "lines.h"
#include "problem/random_line.h"
#include "validators.h"

namespace foveal::cli {
namespace {

struct Options {
  LineOptions lines;
  std::int64_t random = 0, sample = 0;
  std::uint64_t seed = 0;
  std::string json;
  double limit = 0;  // seconds
  bool quiet = false;
};

struct Counts {
  std::int64_t passed = 0, failed = 0, refused = 0;
};

Json to_json(const check::Report& report) {
  Json tensors = Json::array();
  for (const check::TensorReport& t : report.tensors) {
    tensors.push_back({{"name", t.name},
                       {"pass", t.pass},
                       {"max_error", t.max_error},
                       {"max_bound", t.max_bound},
                       {"rms_error", t.rms_error},
                       {"rms_bound", t.rms_bound},
                       {"row_ratio", t.row_ratio},
                       {"naive_max_error", t.naive_max_error}});
  }
  return {{"line", report.line},       {"kernel", report.kernel},   {"pass", report.pass},
          {"refused", report.refused}, {"failure", report.failure}, {"tensors", tensors}};
}

void print(const check::Report& report, bool quiet) {
  if (report.pass && quiet) return;
  const char* verdict = report.pass ? "ok" : report.refused ? "refused" : "FAILED";
  fmt::print("{:<8}{}", verdict, report.kernel.empty() ? "" : report.kernel + "  ");
  for (const check::TensorReport& t : report.tensors) fmt::print("{} {:.1e}{} ", t.name, t.max_error, t.pass ? "" : "!");
  fmt::print(" {}\n", report.line);
  if (!report.failure.empty()) fmt::print("        {}\n", report.failure);
  if (!report.pass && !report.refused) fmt::print("        again: foveal check '{}'\n", report.line);
}

// Lines that differ only in options share their reference results.
std::string without_options(problem::Line line) {
  line.options = {};
  return problem::to_string(line);
}

void run(const Options& options) {
  if (!options.json.empty()) check_output_file(options.json);
  std::vector<problem::Line> given = read_lines(options.lines);
  for (std::int64_t i = 0; i < options.random; ++i) {
    base::Random random(options.seed + static_cast<std::uint64_t>(i));
    given.push_back(problem::random_line(random));
  }
  if (options.sample > 0)
    for (problem::Line& line : given) line.sample = options.sample;
  const std::vector<problem::Line> lines = apply_overrides(given, options.lines);
  check_any(lines, options.lines, "check", "lines, --suite or --random");

  Counts counts;
  Json rows = Json::array();
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [begin] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  std::size_t done = 0;
  std::string known;
  std::unique_ptr<const check::Checker> checker;
  int code = exit_ok;  // of lines that are wrong
  for (const problem::Line& line : lines) {
    if (options.limit > 0 && seconds() > options.limit) break;
    ++done;
    try {
      if (std::string text = without_options(line); text != known) {
        known.clear();
        checker = std::make_unique<const check::Checker>(line);
        known = std::move(text);
      }
      const check::Report report = (*checker)(line.options);
      (report.pass ? counts.passed : report.refused ? counts.refused : counts.failed) += 1;
      print(report, options.quiet);
      std::fflush(stdout);
      if (!options.json.empty()) rows.push_back(to_json(report));
    } catch (const std::exception& error) {
      const ExitCode wrong = complain(error);
      if (code == exit_ok) code = wrong;
    }
  }
  if (code != exit_ok && counts.passed + counts.failed + counts.refused == 0) throw Exit{code};
  if (!options.json.empty()) write_json(rows, options.json);
  fmt::print("{} passed, {} failed, {} refused in {:.1f} s", counts.passed, counts.failed, counts.refused, seconds());
  if (done < lines.size()) fmt::print(", {} left when the time was up", lines.size() - done);
  fmt::print("\n");
  if (counts.failed > 0) throw Exit{exit_check_failed};
  if (code != exit_ok) throw Exit{code};
  if (counts.passed == 0) throw Exit{exit_unsupported};
}

}  // namespace

void add_check(CLI::App& app) {
  CLI::App* command = app.add_subcommand("check", "Verify problem lines against the fp64 reference");
  const auto options = std::make_shared<Options>();
  constexpr std::uint64_t most = INT64_MAX;
  add_line_options(*command, options->lines);
  command->add_option("--random", options->random, "this many random problems")->check(whole_number(0, most));
  command->add_option("--seed", options->seed, "number of the first random problem")->check(whole_number())->capture_default_str();
  command
      ->add_option("--sample", options->sample,
                   "look at this many queries of each line (sample=N): for lengths at which the reference is slow")
      ->check(whole_number(0, most));
  command->add_option("--json", options->json, "write every error and bound to this file");
  command->add_option("--seconds", options->limit, "stop after this time")->check(not_negative());
  command->add_flag("-q,--quiet", options->quiet, "print only what does not pass, and the counts");
  command->callback([options] { run(*options); });
}

}  // namespace foveal::cli
