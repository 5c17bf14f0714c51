// Problem lines on a GPU, by the tolerance rule, again and again, or by the clock. Needs a device, so it is a program and not a unit test.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "catalogue/catalogue.h"
#include "check/check.h"
#include "cuda/jit/driver.h"
#include "cuda/jit/nvrtc.h"
#include "on_gpu.h"
#include "problem/random_line.h"
#include "random_program.h"

using namespace foveal;
using nlohmann::json;
using test::OnGpu;
using Clock = std::chrono::steady_clock;

namespace {

struct Options {
  std::vector<std::string> files, catalogue;
  std::string out, target;
  int random = 0, programs = 0, seed = 0, threads = 4, runs = 100;
  double seconds = 1e9;
};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::string read(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The lines of all files.
std::vector<problem::Line> lines_of(const Options& options) {
  std::vector<problem::Line> lines;
  for (const std::string& file : options.files) {
    std::istringstream in(read(file));
    for (std::string text; std::getline(in, text);)
      if (!text.empty() && text[0] != '#') lines.push_back(problem::parse_line(text));
  }
  return lines;
}

std::vector<problem::Line> on_gpu(std::vector<problem::Line> lines, const std::string& target) {
  for (problem::Line& line : lines) {
    line = test::on_gpu(std::move(line));
    if (!target.empty()) line.options.target = target;
  }
  return lines;
}

/// What was found about each line. The file is written again every second and at the end, so that a run that is ended says how far it came.
class Report {
 public:
  Report(std::string kind, const std::string& path, std::vector<std::string> command) : kind_(std::move(kind)), path_(path) {
    report_ = {{"device", cuda::driver::device_facts(0).name}, {"nvrtc", cuda::jit::nvrtc_identity()}, {"command", std::move(command)}};
  }

  void begin(const std::vector<problem::Line>& lines) {
    for (const problem::Line& line : lines) results_.push_back({{"line", problem::to_string(line)}, {"status", "not run"}});
  }
  void put(std::size_t i, const json& result) {
    const std::lock_guard lock(mutex_);
    results_[i].update(result);
    const std::string status = results_[i]["status"];
    if (status == "fail" || status == "error" || status == "differs") {
      std::printf("%s: %s\n    %s\n", status.c_str(), results_[i]["line"].get<std::string>().c_str(),
                  results_[i].value("failure", "").substr(0, 600).c_str());
      std::fflush(stdout);
    }
    if (seconds_since(saved_) >= 1) save();
  }
  /// Prints how many lines ended how. Did none fail?
  bool end() {
    save();
    const auto counted = counts();
    for (const auto& [status, count] : counted) std::printf("%s: %d\n", status.c_str(), count);
    return !counted.contains("fail") && !counted.contains("error") && !counted.contains("differs") && !counted.contains("invalid");
  }

 private:
  std::map<std::string, int> counts() const {
    std::map<std::string, int> counted;
    for (const json& result : results_) ++counted[result["status"]];
    return counted;
  }
  void save() {
    saved_ = Clock::now();
    if (path_.empty()) return;
    report_[kind_] = {{"counts", counts()}, {"results", results_}};
    std::ofstream(path_ + ".unfinished") << report_.dump(1) << "\n";
    std::filesystem::rename(path_ + ".unfinished", path_);
  }

  std::string kind_, path_;
  json report_;
  std::vector<json> results_;
  std::mutex mutex_;
  Clock::time_point saved_ = Clock::now();
};

/// What `fn` finds, or the error that it throws.
template <class Fn>
json attempt(Fn&& fn) {
  try {
    return fn();
  } catch (const Error& error) {
    return {{"status", error.code() == ErrorCode::invalid_argument ? "invalid" : "error"}, {"failure", error.what()}};
  } catch (const std::exception& error) {
    return {{"status", "error"}, {"failure", error.what()}};
  }
}

json check_one(const problem::Line& line) {
  const auto begin = Clock::now();
  json result = attempt([&] {
    const check::Report report = check::check_line(line);
    json found{{"kernel", report.kernel}, {"status", report.refused ? "refused" : report.pass ? "pass" : "fail"}};
    if (!report.failure.empty()) found["failure"] = report.failure;
    for (const check::TensorReport& tensor : report.tensors)
      found["tensors"][tensor.name] = {{"max_error", tensor.max_error}, {"max_bound", tensor.max_bound}, {"row_ratio", tensor.row_ratio}};
    return found;
  });
  result["seconds"] = seconds_since(begin);
  return result;
}

/// A random program may leave the range of fp32 on the way to a finite result: then the CPU's kernels for f32 fail, too.
json check_program(const problem::Line& line) {
  json result = check_one(line);
  if (result["status"] != "fail") return result;
  problem::Line on_cpu = line;
  on_cpu.device = {DeviceKind::cpu, 0};
  on_cpu.options = {}, on_cpu.options.backend = "cpu";
  on_cpu.attention.backward = {};
  if (line.dtype != DType::f64) on_cpu.dtype = DType::f32;
  if (check_one(on_cpu)["status"] == "fail") result["status"] = "beyond fp32";
  return result;
}

std::vector<problem::Line> catalogue_lines(const std::vector<std::string>& dtypes) {
  std::vector<problem::Line> lines;
  const auto add = [&](const std::string& dtype, const auto& rows) {
    for (const catalogue::Row& row : rows) {
      const std::string text = dtype + " " + row.text;
      const bool backward_only = text.find(" grad") != std::string::npos || text.find(" dlse") != std::string::npos;
      if (!backward_only) lines.push_back(problem::parse_line("forward " + text));
      lines.push_back(problem::parse_line("backward " + text));
    }
  };
  for (const std::string& dtype : dtypes) add(dtype, catalogue::scores), add(dtype, catalogue::learnable), add(dtype, catalogue::masks);
  return lines;
}

/// Random programs. Some cannot be written: an integer divided by the constant 0, for one.
std::vector<problem::Line> program_lines(int first_seed, int count) {
  std::vector<problem::Line> lines;
  for (int i = 0; i < count; ++i) {
    try {
      lines.push_back(test::random_program(static_cast<unsigned>(first_seed + i)));
    } catch (const Error&) {
    }
  }
  return lines;
}

/// On several threads: the reference on the CPU is the long part.
void check_all(const Options& options, std::vector<problem::Line> lines, Report& report) {
  for (problem::Line& line : catalogue_lines(options.catalogue)) lines.push_back(std::move(line));
  for (int i = 0; i < options.random; ++i) {
    base::Random random(77000 + static_cast<std::uint64_t>(i));
    lines.push_back(problem::random_line(random));
  }
  const std::size_t first_program = lines.size();
  for (problem::Line& line : program_lines(options.seed, options.programs)) lines.push_back(std::move(line));
  lines = on_gpu(std::move(lines), options.target);
  FOVEAL_CHECK(!lines.empty(), "no problem lines: FILE has none, nor do the options ask for some");
  report.begin(lines);
  set_num_threads(1);
  const auto begin = Clock::now();
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i; (i = next++) < lines.size() && seconds_since(begin) < options.seconds;) {
      report.put(i, {{"status", "under way"}});
      report.put(i, i < first_program ? check_one(lines[i]) : check_program(lines[i]));
    }
  };
  std::vector<std::thread> pool;
  for (int t = 0; t < options.threads; ++t) pool.emplace_back(work);
  for (std::thread& thread : pool) thread.join();
}

/// After each run all bytes of all tensors, gaps included, are those of the first.
json repeat_one(const problem::Line& line, int runs) {
  OnGpu gpu(line);
  std::string first;
  int different = 0;
  for (int run = 0; run < runs; ++run) {
    gpu.data.clear_outputs(line.pass);
    gpu.device.upload();
    // Given what its forward pass leaves: what terms of gradients are like decides how they are summed.
    if (!gpu.is_forward()) gpu.run_forward();
    gpu.run();
    const std::string bytes = gpu.bytes();
    if (run == 0) first = bytes;
    different += bytes != first;
  }
  json found{{"kernel", gpu.plan.kernel()}, {"runs", runs}, {"different_from_the_first", different}, {"status", "same"}};
  if (different > 0) found["status"] = "differs", found["failure"] = base::join(different, " of ", runs, " runs");
  return found;
}

json time_one(const problem::Line& line) {
  const auto begin_plan = Clock::now();
  OnGpu gpu(line);
  const double plan_seconds = seconds_since(begin_plan);
  if (!gpu.is_forward()) gpu.run_forward();
  const auto milliseconds = [&](int runs) {
    const auto begin = Clock::now();
    for (int i = 0; i < runs; ++i) gpu.run();
    gpu.memory.synchronize({});
    return 1e3 * seconds_since(begin) / runs;
  };
  milliseconds(3);
  constexpr double wanted_ms = 4;  // of a sample: what it takes to wait for the device does not show
  const int runs = std::clamp(static_cast<int>(wanted_ms / milliseconds(4)), 4, 200);
  std::vector<double> times;
  for (int sample = 0; sample < 7; ++sample) times.push_back(milliseconds(runs));
  std::sort(times.begin(), times.end());
  const Explanation explanation = gpu.plan.explain();
  const double ms = times[times.size() / 2], tflops = explanation.flops_nominal / ms * 1e-9;
  std::printf("%8.3f ms %7.1f TFLOP/s  ready in %.2f s  %s\n", ms, tflops, plan_seconds, problem::to_string(line).c_str());
  std::fflush(stdout);
  return {{"status", "timed"},        {"kernel", explanation.kernel},  {"ms", ms},
          {"tflops_nominal", tflops}, {"ready_seconds", plan_seconds}, {"details", explanation.details}};
}

/// one(line) for each line, one after the other.
template <class Fn>
void in_turn(const Options& options, std::vector<problem::Line> lines, Report& report, Fn&& one) {
  lines = on_gpu(std::move(lines), options.target);
  FOVEAL_CHECK(!lines.empty(), "no problem lines in FILE");
  report.begin(lines);
  for (std::size_t i = 0; i < lines.size(); ++i) report.put(i, attempt([&] { return one(lines[i]); }));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Problem lines of files on the first GPU. Exit code 1: one failed.", "gpu_conformance");
  app.require_subcommand(1);
  Options options;
  const auto verb = [&](const char* name, const char* what, bool needs_files) {
    CLI::App* command = app.add_subcommand(name, what);
    CLI::Option* files =
        command->add_option("FILE", options.files, "problem lines, one each; # begins a comment")->check(CLI::ExistingFile);
    if (needs_files) files->required();
    command->add_option("--out", options.out, "report as JSON, written again every second");
    command->add_option("--target", options.target, "kernels of this architecture, such as sm80; default: those that plans choose");
    return command;
  };
  CLI::App* check = verb("check", "Compare each line with the fp64 reference by the tolerance rule", false);
  check->add_option("--catalogue", options.catalogue, "also every row of the catalogue, both passes, in these types")->delimiter(',');
  check->add_option("--random", options.random, "also so many random problems")->check(CLI::NonNegativeNumber);
  check->add_option("--programs", options.programs, "also so many random programs")->check(CLI::NonNegativeNumber);
  check->add_option("--seed", options.seed, "of the first of these programs");
  check->add_option("--threads", options.threads, "that compute references")->check(CLI::PositiveNumber)->capture_default_str();
  check->add_option("--seconds", options.seconds, "no line begins later; those are \"not run\"")->check(CLI::NonNegativeNumber);
  CLI::App* repeat = verb("repeat", "Run each line many times: are the bits the same?", true);
  repeat->add_option("--runs", options.runs, "of each line")->check(CLI::Range(2, 1 << 20))->capture_default_str();
  CLI::App* time = verb("time", "Time each line", true);
  CLI11_PARSE(app, argc, argv);
  if (!cuda::driver::unavailable().empty()) {
    std::fprintf(stderr, "gpu_conformance: %s\n", cuda::driver::unavailable().c_str());
    return 3;
  }
  try {
    const std::vector<problem::Line> lines = lines_of(options);
    Report report(app.get_subcommands().front()->get_name(), options.out, {argv + 1, argv + argc});
    if (*check) check_all(options, lines, report);
    if (*repeat) in_turn(options, lines, report, [&](const problem::Line& line) { return repeat_one(line, options.runs); });
    if (*time) in_turn(options, lines, report, time_one);
    return report.end() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_conformance: %s\n", error.what());
    return 2;
  }
}
