// Random problems on every CPU target, for so many seconds or until it is interrupted: how large errors are beside their bounds. Writes one
// JSON object; fails where a result is outside of its bound, and prints the line.
//
//   fuzz_errors FIRST_SEED SECONDS [FILE]
//
// One problem of 16 has up to 150 tokens and 160 dimensions, the others have up to 40 and 40, which are checked in milliseconds.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <tuple>

#include "check/check.h"
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

volatile std::sig_atomic_t interrupted = 0;

problem::Line line_of(std::uint64_t seed) {
  base::Random random(seed);
  if (seed % 16 == 0) return problem::random_line(random);
  return problem::random_line(random, {.seqlen = 40, .head_dim = 40, .pairs = 3000});
}

}  // namespace

int main(int argc, char** argv) {
  const auto first = std::strtoull(argc > 1 ? argv[1] : "1", nullptr, 10);
  const double seconds = argc > 2 ? std::atof(argv[2]) : 10;
  const auto begin = std::chrono::steady_clock::now();
  std::map<std::tuple<std::string, std::string, std::string>, std::vector<double>> ratios;  // by dtype, target, output
  std::uint64_t seed = first;
  long checks = 0, refused = 0, failures = 0;
  std::string worst_line;
  double worst = 0;
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { interrupted = 1; });
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  for (; !interrupted && elapsed() < seconds; ++seed) {
    const problem::Line line = line_of(seed);
    const check::Checker check(line);
    for (const TargetInfo& target : targets()) {
      if (!target.available || target.backend == "cuda") continue;
      const check::Report report = check({.backend = target.backend, .target = target.target, .threads = 1, .executor = nullptr});
      if (report.refused) {
        ++refused;
        continue;
      }
      ++checks;
      if (!report.pass) {
        ++failures;
        std::fprintf(stderr, "seed %llu: %s: %s\n", static_cast<unsigned long long>(seed), report.line.c_str(), report.failure.c_str());
      }
      for (const check::TensorReport& tensor : report.tensors) {
        double ratio = tensor.row_ratio;
        if (tensor.max_bound > 0) ratio = std::max(ratio, tensor.max_error / tensor.max_bound);
        if (tensor.rms_bound > 0) ratio = std::max(ratio, tensor.rms_error / tensor.rms_bound);
        ratios[{to_string(line.dtype), target.target, output_of(tensor.name)}].push_back(ratio);
        if (ratio > worst) worst = ratio, worst_line = report.line;
      }
    }
  }
  std::ofstream file;
  if (argc > 3) file.open(argv[3]);
  std::ostream& out = argc > 3 ? file : std::cout;
  for (char& c : worst_line)
    if (c == '"') c = '\'';
  out << "{\"first_seed\": " << first << ", \"problems\": " << seed - first << ", \"checks\": " << checks << ", \"refused\": " << refused
      << ", \"failures\": " << failures << ", \"seconds\": " << std::lround(elapsed()) << ",\n \"worst\": " << worst
      << ", \"worst_line\": \"" << worst_line << "\",\n \"rows\": [";
  const char* separator = "\n  ";
  for (auto& [key, values] : ratios) {
    std::sort(values.begin(), values.end());
    const auto& [dtype, target, output] = key;
    out << separator << "{\"dtype\": \"" << dtype << "\", \"target\": \"" << target << "\", \"output\": \"" << output
        << "\", \"tensors\": " << values.size() << ", \"median\": " << quantile(values, 0.5) << ", \"p999\": " << quantile(values, 0.999)
        << ", \"worst\": " << values.back() << "}";
    separator = ",\n  ";
  }
  out << "\n ]}\n";
  return failures == 0 ? 0 : 1;
}
