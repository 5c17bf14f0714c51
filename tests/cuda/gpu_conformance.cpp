// Problem lines on the GPU, judged by the tolerance rule; needs a device, so it is a program and not a unit test.
//
//   gpu_conformance --check FILE [--fuzz N] [--threads T] [--target NAME] --out report.json      every line of FILE (and N random ones)
//   gpu_conformance --repeat FILE --runs N --out repeat.json                                     are N runs of each line the same bits?
//   gpu_conformance --time FILE --out times.json                                                 milliseconds of each line
//   gpu_conformance --catalogue bf16,f32 ...                                                     rows of the catalogue, both passes
//   gpu_conformance --programs N [--seed S] ...                                                  N random programs (random_program.h), from S on
//
// `--seconds N` begins no check after N seconds. The report is written again every second: when the program is ended, too, it says what passed, what failed (which is
// printed at once), and what did not end ("under way") or begin ("not run").
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "catalogue/catalogue.h"
#include "check/check.h"
#include "check/device_case.h"
#include "cuda/cuda_memory.h"
#include "cuda/jit/driver.h"
#include "cuda/jit/nvrtc.h"
#include "plan/flops.h"
#include "problem/case_data.h"
#include "problem/random_line.h"
#include "random_program.h"

using namespace foveal;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

namespace {

struct Options {
  std::string check, repeat, time, out, target;
  std::vector<std::string> catalogue;
  int fuzz = 0, programs = 0, seed = 0, threads = 4, runs = 100;
  double seconds = 1e9;
};

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--check") options.check = value;
    if (name == "--time") options.time = value;
    if (name == "--repeat") options.repeat = value;
    if (name == "--runs") options.runs = std::atoi(value.c_str());
    if (name == "--out") options.out = value;
    if (name == "--target") options.target = value;
    if (name == "--seconds") options.seconds = std::atof(value.c_str());
    if (name == "--fuzz") options.fuzz = std::atoi(value.c_str());
    if (name == "--programs") options.programs = std::atoi(value.c_str());
    if (name == "--seed") options.seed = std::atoi(value.c_str());
    if (name == "--threads") options.threads = std::atoi(value.c_str());
    if (name == "--catalogue") {
      std::istringstream names(value);
      for (std::string dtype; std::getline(names, dtype, ',');) options.catalogue.push_back(dtype);
    }
  }
  return options;
}

std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  return lines;
}

problem::Line on_gpu(problem::Line line, const std::string& target) {
  line.device = {DeviceKind::cuda, 0};
  line.options.backend = "cuda";
  if (!target.empty()) line.options.target = target;
  return line;
}

json check_one(const problem::Line& line) {
  const auto begin = Clock::now();
  json result{{"line", problem::to_string(line)}};
  try {
    const check::Report report = check::check_line(line);
    result["kernel"] = report.kernel;
    result["status"] = report.refused ? "refused" : report.pass ? "pass" : "fail";
    if (!report.failure.empty()) result["failure"] = report.failure;
    for (const check::TensorReport& tensor : report.tensors) {
      result["tensors"][tensor.name] = {{"max_error", tensor.max_error}, {"max_bound", tensor.max_bound}, {"row_ratio", tensor.row_ratio}};
    }
  } catch (const Error& error) {
    result["status"] = error.code() == ErrorCode::invalid_argument ? "invalid" : "error";
    result["failure"] = error.what();
  } catch (const std::exception& error) {
    result["status"] = "error";
    result["failure"] = error.what();
  }
  result["seconds"] = std::chrono::duration<double>(Clock::now() - begin).count();
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

/// Runs `count` tasks on some threads; the CPU side of each (exact results) is the long part.
template <class Fn>
void on_threads(int threads, std::size_t count, Fn&& fn) {
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&] {
      for (std::size_t i; (i = next++) < count;) fn(i);
    });
  }
  for (std::thread& thread : pool) thread.join();
}

json summary(const std::vector<json>& results) {
  std::map<std::string, int> counts;
  for (const json& result : results) ++counts[result["status"]];
  return {{"counts", counts}, {"results", results}};
}

/// save: writes a report, to be called by one thread at a time.
json check_all(const Options& options, const std::function<void(const json&)>& save) {
  std::vector<problem::Line> lines;
  if (!options.check.empty())
    for (const std::string& text : read_lines(options.check)) lines.push_back(on_gpu(problem::parse_line(text), options.target));
  for (const std::string& dtype : options.catalogue) {
    const auto add = [&](const catalogue::Row& row) {
      const std::string text = row.text;
      const bool backward_only = text.find(" grad") != std::string::npos || text.find(" dlse") != std::string::npos;
      for (const char* pass : {"forward ", "backward "}) {
        if (backward_only && pass[0] == 'f') continue;
        lines.push_back(on_gpu(problem::parse_line(pass + dtype + " " + text), options.target));
      }
    };
    for (const auto& row : catalogue::scores) add(row);
    for (const auto& row : catalogue::learnable) add(row);
    for (const auto& row : catalogue::masks) add(row);
  }
  for (int i = 0; i < options.fuzz; ++i) {
    base::Random random(77000 + static_cast<std::uint64_t>(i));
    lines.push_back(on_gpu(problem::random_line(random), options.target));
  }
  const std::size_t first_program = lines.size();
  for (int i = 0; i < options.programs; ++i)
    lines.push_back(on_gpu(test::random_program(static_cast<unsigned>(options.seed + i)), options.target));
  set_num_threads(1);
  std::vector<json> results;
  for (const problem::Line& line : lines) results.push_back({{"line", problem::to_string(line)}, {"status", "not run"}});
  std::mutex mutex;
  const auto begin = Clock::now();
  auto saved = begin;
  const auto put = [&](std::size_t i, const json& result) {
    const std::lock_guard lock(mutex);
    results[i] = result;
    if (result["status"] == "fail" || result["status"] == "error") {
      std::printf("%s: %s\n    %s\n", result["status"].get<std::string>().c_str(), result["line"].get<std::string>().c_str(),
                  result["failure"].get<std::string>().substr(0, 600).c_str());
      std::fflush(stdout);
    }
    if (Clock::now() - saved < std::chrono::seconds(1)) return;
    save(summary(results));
    saved = Clock::now();
  };
  on_threads(options.threads, lines.size(), [&](std::size_t i) {
    if (std::chrono::duration<double>(Clock::now() - begin).count() >= options.seconds) return;
    put(i, {{"line", problem::to_string(lines[i])}, {"status", "under way"}});
    put(i, i < first_program ? check_one(lines[i]) : check_program(lines[i]));
  });
  const json found = summary(results);
  for (const auto& [status, count] : found["counts"].items()) std::printf("%s: %d\n", status.c_str(), count.get<int>());
  return found;
}

/// A backward pass is given out and lse of its forward pass: what terms of gradients are like decides how they are summed.
void run_forward(const problem::Line& line, const check::DeviceCase& on_device) {
  const Plan plan = foveal::plan(line.attention, on_device.forward_inputs(), on_device.forward_outputs(), line.options);
  const auto workspace = std::shared_ptr<void>(cuda::cuda_memory(0).allocate(std::max<std::size_t>(1, plan.workspace_bytes())),
                                               [](void* memory) { cuda::cuda_memory(0).release(memory); });
  plan.run(on_device.forward_inputs(), on_device.forward_outputs(), workspace.get());
  cuda::cuda_memory(0).synchronize({});
}

/// Runs a line again and again; after each run all bytes of all tensors, gaps included, are those of the first.
json repeat_one(const problem::Line& line, int runs) {
  json result{{"line", problem::to_string(line)}, {"runs", runs}};
  try {
    problem::CaseData data(line);
    check::DeviceCase on_device(data);
    const bool forward = line.pass == Pass::forward;
    const Plan plan = forward ? foveal::plan(line.attention, on_device.forward_inputs(), on_device.forward_outputs(), line.options)
                              : foveal::plan(line.attention, on_device.backward_inputs(), on_device.backward_outputs(), line.options);
    const auto workspace = std::shared_ptr<void>(cuda::cuda_memory(0).allocate(std::max<std::size_t>(1, plan.workspace_bytes())),
                                                 [](void* memory) { cuda::cuda_memory(0).release(memory); });
    std::string first;
    int different = 0;
    for (int run = 0; run < runs; ++run) {
      data.clear_outputs(line.pass);
      on_device.upload();
      if (!forward) run_forward(line, on_device);
      if (forward)
        plan.run(on_device.forward_inputs(), on_device.forward_outputs(), workspace.get());
      else
        plan.run(on_device.backward_inputs(), on_device.backward_outputs(), workspace.get());
      on_device.download();
      std::string bytes;
      for (const auto& [name, block] : data.blocks()) bytes.append(reinterpret_cast<const char*>(block.bytes.get()), block.size);
      if (run == 0)
        first = std::move(bytes);
      else
        different += bytes != first;
    }
    result["kernel"] = plan.kernel();
    result["different_from_the_first"] = different;
    std::printf("%d of %d runs differ: %s\n", different, runs, result["line"].get<std::string>().c_str());
  } catch (const std::exception& error) {
    result["failure"] = error.what();
    std::printf("error: %s\n    %s\n", result["line"].get<std::string>().c_str(), std::string(error.what()).substr(0, 600).c_str());
  }
  std::fflush(stdout);
  return result;
}

json time_one(const problem::Line& line) {
  json result{{"line", problem::to_string(line)}};
  try {
    problem::CaseData data(line);
    check::DeviceCase on_device(data);
    on_device.upload();
    planning::DeviceMemory& memory = cuda::cuda_memory(0);
    const auto begin_plan = Clock::now();
    const bool forward = line.pass == Pass::forward;
    const Plan plan = forward ? foveal::plan(line.attention, on_device.forward_inputs(), on_device.forward_outputs(), line.options)
                              : foveal::plan(line.attention, on_device.backward_inputs(), on_device.backward_outputs(), line.options);
    result["plan_seconds"] = std::chrono::duration<double>(Clock::now() - begin_plan).count();
    if (!forward) run_forward(line, on_device);
    void* workspace = memory.allocate(plan.workspace_bytes());
    const auto run = [&] {
      if (forward)
        plan.run(on_device.forward_inputs(), on_device.forward_outputs(), workspace);
      else
        plan.run(on_device.backward_inputs(), on_device.backward_outputs(), workspace);
    };
    const auto time_of = [&](int runs) {
      const auto begin = Clock::now();
      for (int i = 0; i < runs; ++i) run();
      memory.synchronize({});
      return std::chrono::duration<double, std::milli>(Clock::now() - begin).count() / runs;
    };
    time_of(3);
    constexpr double wanted_ms = 4;  // of a sample: what it takes to wait for the device does not show
    const int runs = std::clamp(static_cast<int>(wanted_ms / time_of(4)), 4, 200);
    std::vector<double> times;
    for (int sample = 0; sample < 7; ++sample) times.push_back(time_of(runs));
    std::sort(times.begin(), times.end());
    memory.release(workspace);
    const Explanation explanation = plan.explain();
    const double ms = times[times.size() / 2];
    result["kernel"] = explanation.kernel;
    result["ms"] = ms;
    result["tflops_nominal"] = explanation.flops_nominal / ms * 1e-9;
    result["details"] = explanation.details;
    std::printf("%8.3f ms %7.1f TFLOP/s  plan %.2f s  %s\n", ms, explanation.flops_nominal / ms * 1e-9,
                result["plan_seconds"].get<double>(), result["line"].get<std::string>().c_str());
  } catch (const std::exception& error) {
    result["failure"] = error.what();
    std::printf("error: %s\n    %s\n", result["line"].get<std::string>().c_str(), std::string(error.what()).substr(0, 600).c_str());
  }
  std::fflush(stdout);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  json report;
  if (!cuda::driver::unavailable().empty()) {
    std::printf("%s\n", cuda::driver::unavailable().c_str());
    return 1;
  }
  report["device"] = cuda::driver::device_facts(0).name;
  report["nvrtc"] = cuda::jit::nvrtc_identity();
  for (int i = 1; i < argc; ++i) report["command"].push_back(argv[i]);
  const auto save = [&] {
    if (options.out.empty()) return;
    std::ofstream(options.out + ".unfinished") << report.dump(1) << "\n";
    std::filesystem::rename(options.out + ".unfinished", options.out);
  };
  if (!options.check.empty() || options.fuzz > 0 || options.programs > 0 || !options.catalogue.empty()) {
    report["check"] = check_all(options, [&](const json& so_far) {
      report["check"] = so_far;
      save();
    });
  }
  if (!options.repeat.empty()) {
    for (const std::string& text : read_lines(options.repeat))
      report["repeat"].push_back(repeat_one(on_gpu(problem::parse_line(text), options.target), options.runs)), save();
  }
  if (!options.time.empty()) {
    for (const std::string& text : read_lines(options.time))
      report["time"].push_back(time_one(on_gpu(problem::parse_line(text), options.target))), save();
  }
  save();
  return 0;
}
