// Random problems on every target of the CPU, or of a GPU: how large errors are beside their bounds. Writes one JSON object, again every few
// seconds; fails where a result is outside of its bound, and prints the line.
//
//   fuzz_errors FIRST_SEED SECONDS [FILE] [--problems N] [--threads N] [--device cuda] [--programs N]
//
// Ends after so many seconds or problems, or when it is interrupted. One problem of 16 has up to 150 tokens and 160 dimensions, the others
// have up to 40 and 40, which are checked in milliseconds. On a GPU each program has kernels of its own, whose compilation takes seconds: a
// problem there has one of `--programs` programs, with types and head_dim, and sizes, layout, numbers and data of its seed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "arguments.h"
#include "check/check.h"
#include "on_device.h"
#include "problem/random_line.h"

using namespace foveal;

namespace {

double quantile(const std::vector<double>& sorted, double part) {
  return sorted[std::min(sorted.size() - 1, static_cast<std::size_t>(part * static_cast<double>(sorted.size())))];
}

/// Gradients of parameters under one name.
std::string output_of(const std::string& name) {
  for (const char* known : {"out", "lse", "dq", "dk", "dv"})
    if (name == known) return name;
  return "parameters";
}

/// Of a kernel: cuda.sm90.bf16.forward.
std::string target_of(const std::string& kernel) {
  const std::size_t begin = kernel.find('.') + 1;
  return kernel.substr(begin, kernel.find('.', begin) - begin);
}

volatile std::sig_atomic_t interrupted = 0;

struct Options {
  explicit Options(const fuzz::Arguments& given)
      : first(given.first_seed()),
        problems(given.number("problems", ~std::uint64_t{0})),
        programs(given.number("programs", 64)),
        seconds(given.limit(10)),
        file(given.file()),
        device(given.device()),
        threads(static_cast<int>(given.number("threads", 1))) {}
  std::uint64_t first, problems, programs;
  double seconds;
  std::string file;
  DeviceKind device;
  int threads;
};

constexpr problem::RandomLimits small{.seqlen = 40, .head_dim = 40, .pairs = 3000};

problem::Line line_of(const Options& options, std::uint64_t seed) {
  if (options.device == DeviceKind::cuda) return fuzz::line_on_device(seed, options.programs, {options.device, 0});
  base::Random random(seed);
  return seed % 16 == 0 ? problem::random_line(random) : problem::random_line(random, small);
}

/// What was found; of all threads.
class Found {
 public:
  /// target: empty where it was chosen.
  void add(const problem::Line& line, std::uint64_t seed, const std::string& target, const check::Report& report) {
    const std::lock_guard lock(mutex_);
    if (report.refused) {
      ++refused_;
      return;
    }
    ++checks_;
    kernels_.insert(report.kernel);
    if (!report.pass) {
      ++failures_;
      std::fprintf(stderr, "seed %llu: %s: %s\n", static_cast<unsigned long long>(seed), report.line.c_str(), report.failure.c_str());
    }
    for (const check::TensorReport& tensor : report.tensors) {
      double ratio = tensor.row_ratio;
      if (tensor.max_bound > 0) ratio = std::max(ratio, tensor.max_error / tensor.max_bound);
      if (tensor.rms_bound > 0) ratio = std::max(ratio, tensor.rms_error / tensor.rms_bound);
      ratios_[{to_string(line.dtype), target.empty() ? target_of(report.kernel) : target, output_of(tensor.name)}].push_back(ratio);
      if (ratio > worst_) worst_ = ratio, worst_line_ = report.line;
    }
  }
  /// No target was asked: the problem contradicts itself, as where every pair that its mask keeps would read outside of a table.
  void refuse(std::uint64_t seed, const char* why) {
    const std::lock_guard lock(mutex_);
    ++problems_, ++refused_;
    std::fprintf(stderr, "seed %llu: refused: %s\n", static_cast<unsigned long long>(seed), why);
  }
  void problem_is_done() {
    const std::lock_guard lock(mutex_);
    ++problems_;
  }
  long failures() const { return failures_; }

  void write(std::ostream& out, const Options& options, double seconds) {
    const std::lock_guard lock(mutex_);
    std::string line = worst_line_;
    std::replace(line.begin(), line.end(), '"', '\'');
    out << "{\"first_seed\": " << options.first << ", \"problems\": " << problems_ << ", \"checks\": " << checks_
        << ", \"refused\": " << refused_ << ", \"failures\": " << failures_ << ", \"seconds\": " << std::lround(seconds);
    if (options.device != DeviceKind::cpu) out << ", \"programs\": " << options.programs;
    out << ",\n \"worst\": " << worst_ << ", \"worst_line\": \"" << line << "\",\n \"rows\": [";
    const char* separator = "\n  ";
    for (auto& [key, values] : ratios_) {
      std::sort(values.begin(), values.end());
      const auto& [dtype, target, output] = key;
      out << separator << "{\"dtype\": \"" << dtype << "\", \"target\": \"" << target << "\", \"output\": \"" << output
          << "\", \"tensors\": " << values.size() << ", \"median\": " << quantile(values, 0.5) << ", \"p999\": " << quantile(values, 0.999)
          << ", \"worst\": " << values.back() << "}";
      separator = ",\n  ";
    }
    out << "\n ]}\n";
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, std::string>, std::vector<double>> ratios_;  // by dtype, target, output
  std::set<std::string> kernels_;
  long problems_ = 0, checks_ = 0, refused_ = 0, failures_ = 0;
  std::string worst_line_;
  double worst_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options(fuzz::Arguments(argc, argv, {"problems", "programs", "threads", "device"}));
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { interrupted = 1; });
  set_num_threads(1);
  const bool on_gpu = options.device == DeviceKind::cuda;
  std::vector<PlanOptions> judged;
  for (const TargetInfo& target : targets()) {
    if (!target.available || (target.backend == "cuda") != on_gpu) continue;
    judged.push_back({.backend = target.backend, .target = on_gpu ? "" : target.target, .threads = 1, .executor = nullptr});
    if (on_gpu) break;  // on the target that is chosen
  }
  if (judged.empty()) {
    std::fprintf(stderr, "no target of this device is available here\n");
    return 1;
  }

  Found found;
  std::atomic<std::uint64_t> next{0};
  std::atomic<int> at_work{options.threads};
  const auto work = [&] {
    while (!interrupted && elapsed() < options.seconds) {
      const std::uint64_t i = next++;
      if (i >= options.problems) break;
      try {
        const problem::Line line = line_of(options, options.first + i);
        const check::Checker check(line);
        for (const PlanOptions& how : judged) found.add(line, options.first + i, how.target, check(how));
        found.problem_is_done();
      } catch (const Error& error) {
        found.refuse(options.first + i, error.what());
      }
    }
    --at_work;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < options.threads; ++t) threads.emplace_back(work);

  const auto save = [&] {
    if (options.file.empty()) return;
    const std::string unfinished = options.file + ".unfinished";
    std::ofstream out(unfinished);
    found.write(out, options, elapsed());
    out.close();
    std::filesystem::rename(unfinished, options.file);
  };
  for (double saved = 0; at_work > 0; std::this_thread::sleep_for(std::chrono::milliseconds(20)))
    if (elapsed() - saved > 5) save(), saved = elapsed();
  for (std::thread& thread : threads) thread.join();
  save();
  if (options.file.empty()) found.write(std::cout, options, elapsed());
  return found.failures() == 0 ? 0 : 1;
}
