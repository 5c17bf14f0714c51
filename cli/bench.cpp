// foveal bench: how long problem lines take on this CPU, as a share of what it can do, next to the unfused computation. `foveal-bench
// shares` reads its JSON; everything else of benchmarks is foveal-bench's (bench/foveal_bench).
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <new>
#include <thread>

#include "base/check.h"
#include "check/check.h"
#include "command.h"
#include "files/files.h"
#include "json.h"
#include "lines.h"
#include "peaks.h"
#include "problem/case_data.h"
#include "unfused.h"
#include "validators.h"

namespace foveal::cli {
namespace {

struct Options {
  LineOptions lines;
  double seconds = 1;
  bool verify = true, unfused = true;
  std::string json;
};

/// Of one repetition: with one thread its CPU time, which other load hardly affects, else wall-clock time.
struct Timing {
  double median = 0, low = 0, high = 0;  ///< seconds; low and high are the quartiles
  int repeats = 0, quiet = 0;            ///< all repetitions, and those on a quiet machine, which the figures are taken from
};

// Each repetition is bracketed by two runs of a load-heavy calibration; it counts as quiet if both were near the best one. Work that is
// shorter than these is done several times in a repetition: else they, which nobody asked for, would take most of the time.
Timing measure(const std::function<void()>& work, double seconds, int threads) {
  struct Sample {
    double time, calibration;
  };
  const auto now = [threads] {
    if (threads == 1) return micro::thread_seconds();
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  work();
  const double first = now();
  work();
  const int times = static_cast<int>(std::clamp(300e-6 / std::max(now() - first, 1e-9), 1.0, 1000.0));
  std::vector<Sample> samples;
  double spent = 0, before = micro::calibrate();
  while (spent < seconds || samples.size() < 5) {
    const double begin = now();
    for (int i = 0; i < times; ++i) work();
    const double time = now() - begin, after = micro::calibrate();
    samples.push_back({time / times, std::min(before, after)});
    before = after;
    spent += time;
  }
  const double best = std::ranges::max(samples, {}, &Sample::calibration).calibration;
  std::vector<double> quiet, all;
  for (const Sample& sample : samples) {
    all.push_back(sample.time);
    if (sample.calibration >= 0.93 * best) quiet.push_back(sample.time);
  }
  std::vector<double>& taken = quiet.size() >= 3 ? quiet : all;
  std::ranges::sort(taken);
  const auto at = [&taken](double share) { return taken[static_cast<std::size_t>(share * static_cast<double>(taken.size() - 1))]; };
  return {at(0.5), at(0.25), at(0.75), static_cast<int>(samples.size()), static_cast<int>(quiet.size())};
}

/// The line is right, and what came of it is not.
struct WrongResult {
  std::string what;
};

struct AlignedBytes {
  explicit AlignedBytes(std::size_t size) : bytes(::operator new (std::max<std::size_t>(size, 1), std::align_val_t{256})) {}
  ~AlignedBytes() { ::operator delete (bytes, std::align_val_t{256}); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  void* bytes;
};

struct Row {
  Explanation plan;
  int threads = 1;
  Timing timing;
  double rate = 0, peak = 0;  ///< GFLOP/s; peak 0 when it is not known
  Timing unfused;
  std::string why_not_unfused;
};

// 0 if the kernel is not a CPU kernel.
double peak_of(const std::string& kernel, int threads) {
  const auto unit = micro::unit_of_kernel(kernel);
  return unit ? micro::peak(*unit).best * threads : 0;
}

Row bench(const problem::Line& line, const Options& options) {
  if (line.device.kind != DeviceKind::cpu)
    base::fail(ErrorCode::unsupported, "bench: device=cuda; expected cpu, as foveal-bench times GPUs (docs/benchmarks.md)");
  if (options.verify) {
    const check::Report report = check::check_line(line);
    if (report.refused) base::fail(ErrorCode::unsupported, report.failure);
    if (!report.pass) throw WrongResult{base::join("not timed, because its result is wrong: ", report.line, ": ", report.failure)};
  }
  problem::CaseData data(line);
  Row row;
  row.threads = line.options.threads > 0 ? line.options.threads : num_threads();
  const Plan plan = problem::plan_of(line, data);
  row.plan = plan.explain();
  const AlignedBytes workspace(plan.workspace_bytes());
  if (line.pass == Pass::backward) forward(line.attention, data.forward_inputs(), data.forward_outputs(), {}, line.options);
  row.timing = problem::with_arguments(line, data, [&](const auto& inputs, const auto& outputs) {
    return measure([&] { plan.run(inputs, outputs, workspace.bytes); }, options.seconds, row.threads);
  });
  row.rate = row.plan.flops_nominal / row.timing.median / 1e9;
  row.peak = peak_of(row.plan.kernel, row.threads);
  if (!options.unfused) {
    row.why_not_unfused = "not asked for";
  } else if (const auto unfused = make_unfused(data, row.threads, row.why_not_unfused)) {
    row.unfused = measure([&] { unfused->run(); }, options.seconds, row.threads);
  }
  return row;
}

void print(const Row& row) {
  const Timing& t = row.timing;
  fmt::print("{:10.3f} ms  +-{:4.1f}% {:9.1f} GFLOP/s", t.median * 1e3, 50 * (t.high - t.low) / t.median, row.rate);
  fmt::print("  {:<14}", row.peak > 0 ? fmt::format("{:5.1f}% of peak", 100 * row.rate / row.peak) : "");
  if (row.unfused.median > 0) {
    fmt::print("  unfused {:10.3f} ms ({:4.1f}x)", row.unfused.median * 1e3, row.unfused.median / t.median);
  } else {
    fmt::print("  unfused: {}", row.why_not_unfused);
  }
  fmt::print("  {}  {}\n", row.plan.kernel, row.plan.problem);
  std::fflush(stdout);
}

Json to_json(const Timing& t) {
  return {{"median_s", t.median}, {"quartile_low_s", t.low}, {"quartile_high_s", t.high}, {"repeats", t.repeats}, {"quiet", t.quiet}};
}

Json to_json(const Row& row) {
  Json json{{"problem", row.plan.problem},
            {"kernel", row.plan.kernel},
            {"threads", row.threads},
            {"timing", to_json(row.timing)},
            {"gflops", row.rate},
            {"peak_gflops", row.peak},
            {"share_of_peak", row.peak > 0 ? Json(row.rate / row.peak) : Json(nullptr)},
            {"workspace_bytes", row.plan.workspace_bytes}};
  json["unfused"] = row.unfused.median > 0 ? to_json(row.unfused) : Json(row.why_not_unfused);
  return json;
}

void run(const Options& options) {
  if (!options.json.empty()) check_output_file(options.json);
  const std::vector<problem::Line> lines = gather_lines(options.lines, "bench");
  Json rows = Json::array();
  int code = exit_ok;  // a wrong result's before any other
  for (const problem::Line& line : lines) {
    try {
      const Row row = bench(line, options);
      print(row);
      rows.push_back(to_json(row));
    } catch (const std::exception& error) {
      const ExitCode wrong = complain(error);
      if (code == exit_ok && wrong != exit_unsupported) code = wrong;
    } catch (const WrongResult& wrong) {
      complain(wrong.what);
      code = exit_check_failed;
    }
  }
  if (!options.json.empty()) write_json(rows, options.json);
  if (code != exit_ok) throw Exit{code};
  if (rows.empty()) throw Exit{exit_unsupported};
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("bench",
                         "Time problem lines on this CPU: median, spread, GFLOP/s, share of peak, and the unfused computation "
                         "(GPUs and other libraries: the Python command foveal-bench)");
  const auto options = std::make_shared<Options>();
  add_line_options(*command, options->lines);
  command->add_option("--seconds", options->seconds, "of measuring for each line")->check(not_negative())->capture_default_str();
  command->add_flag("!--no-verify", options->verify, "time without checking the results first (the reference is slow on large problems)");
  command->add_flag("!--no-unfused", options->unfused, "leave out the unfused computation");
  command->add_option("--json", options->json, "write all figures to this file");
  command->callback([options] { run(*options); });
}

}  // namespace foveal::cli
