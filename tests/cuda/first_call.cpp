// What the first forward and backward of a process cost, step by step: run it in a fresh process with an empty kernel cache, then again. And what a call of
// decode costs the host whose cache has one more key than at the call before. NVRTC keeps a cache of its own: CUDA_CACHE_DISABLE=1. FOVEAL_KERNELS_DIR
// names kernels that were compiled with the library.
//
//   FOVEAL_CACHE_DIR=$(mktemp -d) first_call "bf16 b4 h16 q4096 d64"        one line of JSON
//   ... first_call "bf16 b4 h16 q4096 d64" alone                            without decode
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "check/device_case.h"
#include "cuda/cuda_memory.h"
#include "cuda/jit/disk_cache.h"
#include "cuda/jit/driver.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/jit/shipped.h"
#include "foveal/score.h"
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

/// Milliseconds of the host: a call with one more key than before, and one with as many.
struct GrowingCache {
  double new_length, same_length;
};
GrowingCache grow_cache(const Attention& attention) {
  constexpr std::int64_t heads = 32, heads_kv = 8, dim = 128, most = 8192, first = 4100, steps = 500;
  const Device gpu{DeviceKind::cuda, 0};
  planning::DeviceMemory& memory = cuda::cuda_memory(0);
  const auto allocate = [&](std::int64_t count) { return memory.allocate(static_cast<std::size_t>(4 * count)); };
  void* const block[] = {allocate(heads * dim), allocate(most * heads_kv * dim), allocate(most * heads_kv * dim), allocate(heads * dim),
                         allocate(heads)};
  GrowingCache mean{0, 0};
  for (std::int64_t step = 0; step <= steps; ++step) {
    const auto keys = [&](void* data) {
      return TensorView(data, DType::bf16, {1, first + step, heads_kv, dim}, {most * heads_kv * dim, heads_kv * dim, dim, 1}, gpu);
    };
    const ForwardInputs in{
        .q = TensorView(block[0], DType::bf16, {1, 1, heads, dim}, gpu), .k = keys(block[1]), .v = keys(block[2]), .params = {}};
    const ForwardOutputs out{.out = TensorView(block[3], DType::bf16, {1, 1, heads, dim}, gpu),
                             .lse = TensorView(block[4], DType::f32, {1, heads, 1}, gpu)};
    const double fresh = milliseconds([&] { forward(attention, in, out); });
    const double again = milliseconds([&] { forward(attention, in, out); });
    memory.synchronize({});
    if (step > 0) mean.new_length += fresh / steps, mean.same_length += again / steps;
  }
  for (void* data : block) memory.release(data);
  return mean;
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
    const cuda::jit::ShippedKernels& shipped = cuda::jit::shipped_kernels();
    row["kernels_shipped"] = shipped.usable() ? shipped.count : 0;
    row["kernels_on_disk_before"] = cuda::jit::cache_list().size();
    row["driver_starts_ms"] = milliseconds([] { cuda::driver::unavailable(); });
    row["context_ms"] = milliseconds([] { cuda::driver::device_facts(0); });
    problem::CaseData data(line);
    check::DeviceCase device(data);
    const auto synchronize = [] { cuda::cuda_memory(0).synchronize({}); };
    const auto forward = [&] { foveal::forward(line.attention, device.forward_inputs(), device.forward_outputs(), {}, line.options); };
    const auto backward = [&] { foveal::backward(line.attention, device.backward_inputs(), device.backward_outputs(), {}, line.options); };
    std::thread ahead;  // as the frameworks' doors do when a gradient will be wanted
    const auto begin_ahead = [&] {
      ahead = std::thread([&] { plan(line.attention, device.backward_inputs(), device.backward_outputs(), line.options); });
    };
    // Nothing of foveal has planned, compiled or loaded anything yet.
    row["compiler_loads_ms"] = milliseconds([] { cuda::jit::nvrtc_unavailable(); });
    const double first_forward = milliseconds([&] { begin_ahead(), forward(), synchronize(); });
    const double first_backward = milliseconds([&] { ahead.join(), backward(), synchronize(); });
    row["first_forward_ms"] = first_forward;
    row["first_backward_ms"] = first_backward;
    row["first_both_ms"] = row["compiler_loads_ms"].get<double>() + first_forward + first_backward;
    row["second_both_ms"] = milliseconds([&] { forward(), backward(), synchronize(); });
    if (argc <= 2) {
      Attention softcap;
      softcap.score_mod = parse("tanh(score / 30) * 30");
      const GrowingCache plain = grow_cache({}), capped = grow_cache(softcap);
      row["decode_one_more_key_ms"] = plain.new_length, row["decode_ms"] = plain.same_length;
      row["softcap_decode_one_more_key_ms"] = capped.new_length, row["softcap_decode_ms"] = capped.same_length;
    }
    row["nvrtc"] = cuda::jit::nvrtc_identity();
    row["device"] = cuda::driver::device_facts(0).name;
  } catch (const std::exception& error) {
    row["failure"] = error.what();
  }
  std::printf("%s\n", row.dump().c_str());
  return row.contains("failure") ? 1 : 0;
}
