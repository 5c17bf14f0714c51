// foveal tune: every legal configuration of a problem's kernels, timed on the device that is there.
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>

#include "base/check.h"
#include "check/device_case.h"
#include "command.h"
#include "cuda/jit/compile.h"
#include "cuda/kernels_of.h"
#include "cuda/tune/tuned.h"
#include "files/files.h"
#include "lines.h"
#include "problem/problem.h"
#include "validators.h"

namespace foveal::cli {
namespace {

struct Options {
  LineOptions lines;
  double seconds = 0.2;
  std::string write;
};

/// The table's own choice stays if it is within this of the fastest, the spread of repeated measurements.
constexpr double noise = 1.01;

/// A problem line on its device, ready to run.
class Case {
 public:
  explicit Case(const problem::Line& line) : line_(line), data_(line), device_(data_), memory_(line.device) {
    if (line.pass == Pass::backward) forward(line.attention, device_.forward_inputs(), device_.forward_outputs(), {}, line.options);
  }

  const problem::Line& line() const { return line_; }
  problem::Problem problem() const { return problem::problem_of(line_, device_); }
  Plan plan() const { return problem::plan_of(line_, device_); }
  /// Seconds of a run, the mean over about so many.
  double time(const Plan& plan, double seconds) {
    const check::DeviceBytes workspace(line_.device, plan.workspace_bytes());
    const std::function<void()> run = problem::with_arguments(line_, device_, [&](const auto& inputs, const auto& outputs) {
      return std::function<void()>([&, inputs, outputs] { plan.run(inputs, outputs, workspace.data()); });
    });
    const auto several = [&](int count) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < count; ++i) run();
      memory_.synchronize();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / count;
    };
    several(2);
    return several(std::clamp(static_cast<int>(seconds / std::max(several(3), 1e-7)), 1, 10000));
  }
  /// All outputs of the last run.
  std::vector<std::vector<double>> results() {
    device_.download();
    std::vector<std::vector<double>> all;
    const bool forward = line_.pass == Pass::forward;
    for (const char* role : {"out", "lse", "dq", "dk", "dv"})
      if (forward == (role[0] != 'd') && data_.view(role).present()) all.push_back(problem::values_of(data_.view(role)));
    for (std::size_t i = 0; !forward && i < line_.params.size(); ++i)
      if (line_.params[i].grad) all.push_back(problem::values_of(data_.dparam(i)));
    return all;
  }

 private:
  problem::Line line_;
  problem::CaseData data_;
  check::DeviceCase device_;
  check::DeviceBytes memory_;
};

/// The largest relative difference (in the 2-norm) of two results over all tensors; 1 if infinities or NaNs are in different places.
double difference(const std::vector<std::vector<double>>& a, const std::vector<std::vector<double>>& b) {
  double most = 0;
  for (std::size_t t = 0; t < a.size(); ++t) {
    double apart = 0, size = 0;
    for (std::size_t i = 0; i < a[t].size(); ++i) {
      const double x = a[t][i], y = b[t][i];
      if (!std::isfinite(x) || !std::isfinite(y)) {
        if (!(x == y || (std::isnan(x) && std::isnan(y)))) return 1;
        continue;
      }
      apart += (x - y) * (x - y), size += x * x;
    }
    if (apart > 0) most = std::max(most, std::sqrt(apart / std::max(size, 1e-300)));
  }
  return most;
}

struct Timed {
  std::string config;
  double seconds = 0;
  std::string failure{};
};

/// A configuration under measurement. Without a plan it has failed.
struct Contender {
  Timed timed;
  std::optional<Plan> plan{};
  std::vector<double> times{};
};

/// Each configuration runs once, and its results are compared with those of the table's.
std::vector<Contender> plan_all(Case& work, const cuda::Family& family) {
  constexpr double wrong = 0.02;  // rounding in another order gives about 0.001 in 16-bit types
  std::vector<std::vector<double>> expected;
  std::vector<Contender> all;
  for (const std::string& config : family.configs) {
    Contender& contender = all.emplace_back(Contender{.timed = {.config = config}});
    try {
      const cuda::Trial trial(family.name, config);
      Plan plan = work.plan();
      work.time(plan, 0);
      if (expected.empty()) {
        expected = work.results();
      } else if (const double apart = difference(expected, work.results()); apart > wrong) {
        contender.timed.failure = fmt::format("its results are {:.2g} away from those of the table's configuration", apart);
        continue;
      }
      contender.plan = std::move(plan);
    } catch (const Error& error) {
      contender.timed.failure = error.what();
    }
  }
  return all;
}

/// Median times. The configurations take turns, as the device's clock changes; the first turn, in which it rises, does not count.
std::vector<Timed> measure(Case& work, const cuda::Family& family, double seconds) {
  constexpr int turns = 5;
  std::vector<Contender> all = plan_all(work, family);
  for (int turn = 0; turn <= turns; ++turn) {
    for (Contender& contender : all) {
      if (!contender.plan) continue;
      const double time = work.time(*contender.plan, seconds / turns);
      if (turn > 0) contender.times.push_back(time);
    }
  }
  std::vector<Timed> timed;
  for (Contender& contender : all) {
    std::sort(contender.times.begin(), contender.times.end());
    if (!contender.times.empty()) contender.timed.seconds = contender.times[contender.times.size() / 2];
    timed.push_back(std::move(contender.timed));
  }
  return timed;
}

/// Compiles the kernels of all configurations at once, on several threads.
void compile_all(const problem::Problem& problem, const cuda::driver::DeviceFacts& facts, const std::string& target,
                 const std::vector<cuda::Family>& families) {
  std::vector<cuda::jit::KernelSource> sources;
  for (const cuda::Family& family : families)
    for (const std::string& config : family.configs) {
      const cuda::Trial trial(family.name, config);
      const auto more = cuda::kernels_on(problem, facts, target);
      sources.insert(sources.end(), more.begin(), more.end());
    }
  cuda::jit::compile(sources);
}

/// Prints the ranking; returns the table line of the fastest.
std::string report(const problem::Problem& problem, const std::string& device, const cuda::Family& family, std::vector<Timed> all) {
  const std::string own = all.front().config;
  const double before = all.front().seconds;
  std::stable_sort(all.begin(), all.end(), [](const Timed& a, const Timed& b) {
    return std::pair(!a.failure.empty(), a.seconds) < std::pair(!b.failure.empty(), b.seconds);
  });
  fmt::print("{} {}: {} configurations\n", device, family.name, all.size());
  for (const Timed& timed : all) {
    if (timed.failure.empty()) {
      fmt::print("{:10.4f} ms  {:6.3f}  {}{}\n", timed.seconds * 1e3, timed.seconds / before, timed.config,
                 timed.config == own ? "  (the table's)" : "");
    } else {
      fmt::print("    failed            {}: {}\n", timed.config, timed.failure);
    }
  }
  std::fflush(stdout);
  FOVEAL_CHECK(all.front().failure.empty(), "tune: no configuration of ", family.name, " runs");
  const bool stays = before > 0 && before <= noise * all.front().seconds;
  return cuda::tuned_line(problem, device, family.name, stays ? own : all.front().config);
}

void run(const Options& options) {
  std::vector<problem::Line> lines = gather_lines(options.lines, "tune");
  if (!options.write.empty()) check_output_file(options.write);
  if (!cuda::driver::unavailable().empty()) base::fail(ErrorCode::unsupported, "tune: ", cuda::driver::unavailable());
  std::ofstream out;
  if (!options.write.empty()) {  // before hours of measurements
    out.open(options.write, std::ios::app);
    FOVEAL_CHECK(out, options.write, ": cannot be written: ", std::strerror(errno));
  }
  std::vector<std::string> found;
  for (problem::Line& line : lines) {
    if (line.device.kind == DeviceKind::cpu) line.device = {DeviceKind::cuda, 0};
    line.options.backend = "cuda";
    Case work(line);
    const cuda::driver::DeviceFacts& facts = cuda::driver::device_facts(line.device.index);
    const problem::Problem problem = work.problem();
    const std::vector<cuda::Family> families = cuda::families_on(problem, facts, line.options.target);
    if (families.empty()) base::fail(ErrorCode::unsupported, "tune: nothing to choose from: ", problem.line());
    fmt::print("{}\n", problem.line());
    compile_all(problem, facts, line.options.target, families);
    for (const cuda::Family& family : families)
      found.push_back(report(problem, facts.name, family, measure(work, family, options.seconds)));
  }
  if (options.write.empty()) return;
  for (const std::string& line : found) out << line << "\n";
  if (!out.flush()) base::fail(ErrorCode::device, "tune: cannot write ", options.write);
  fmt::print("{}: {} lines added; the library reads them where FOVEAL_TUNED={}\n", options.write, found.size(), options.write);
}

}  // namespace

void add_tune(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("tune", "Times every legal configuration of a problem's GPU kernels on the device that is there, and ranks them");
  const auto options = std::make_shared<Options>();
  add_line_options(*command, options->lines);
  command->add_option("--seconds", options->seconds, "Of each configuration's measurement")->check(positive());
  command->add_option("--write", options->write, "Append the fastest to this file, which the library reads as FOVEAL_TUNED=FILE");
  command->callback([options] { run(*options); });
}

}  // namespace foveal::cli
