// What the first forward and backward of a process cost, step by step: run it in a fresh process with an empty kernel cache, then again.
//
//   FOVEAL_CACHE_DIR=$(mktemp -d) first_call "bf16 b4 h16 q4096 d64"        one line of JSON
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "check/device_case.h"
#include "cuda/cuda_memory.h"
#include "cuda/jit/disk_cache.h"
#include "cuda/jit/driver.h"
#include "cuda/jit/nvrtc.h"
#include "problem/case_data.h"

using namespace foveal;

namespace {

using Clock = std::chrono::steady_clock;

template <class Fn>
double milliseconds(Fn&& fn) {
  const auto begin = Clock::now();
  fn();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  nlohmann::json row;
  try {
    const std::string shape = argc > 1 ? argv[1] : "bf16 b4 h16 q4096 d64";
    problem::Line line = problem::parse_line("backward " + shape);
    line.device = {DeviceKind::cuda, 0};
    line.options.backend = "cuda";
    row["problem"] = shape;
    row["kernels_on_disk_before"] = cuda::jit::cache_list().size();
    row["driver_starts_ms"] = milliseconds([] { cuda::driver::unavailable(); });
    row["context_ms"] = milliseconds([] { cuda::driver::device_facts(0); });
    problem::CaseData data(line);
    check::DeviceCase device(data);
    const auto synchronize = [] { cuda::cuda_memory(0).synchronize({}); };
    const auto forward = [&] { foveal::forward(line.attention, device.forward_inputs(), device.forward_outputs(), {}, line.options); };
    const auto backward = [&] { foveal::backward(line.attention, device.backward_inputs(), device.backward_outputs(), {}, line.options); };
    // Nothing of foveal has planned, compiled or loaded anything yet.
    row["compiler_loads_ms"] = milliseconds([] { cuda::jit::nvrtc_unavailable(); });
    const double first_forward = milliseconds([&] { forward(), synchronize(); });
    const double first_backward = milliseconds([&] { backward(), synchronize(); });
    row["first_forward_ms"] = first_forward;
    row["first_backward_ms"] = first_backward;
    row["first_both_ms"] = row["compiler_loads_ms"].get<double>() + first_forward + first_backward;
    row["second_both_ms"] = milliseconds([&] { forward(), backward(), synchronize(); });
    row["nvrtc"] = cuda::jit::nvrtc_identity();
    row["device"] = cuda::driver::device_facts(0).name;
  } catch (const std::exception& error) {
    row["failure"] = error.what();
  }
  std::printf("%s\n", row.dump().c_str());
  return row.contains("failure") ? 1 : 0;
}
