// What score and mask programs cost on CPU tiles: cycles per 16 elements of a tile of 128 keys by 64 lanes that stays in the L2 cache,
// forward and backward, on every target. Cycles by CPU time and a loop of dependent additions, so that other work on the machine matters
// little.
//
//   tape_bench [problem line]...
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "cpu/param_grad_plan.h"
#include "cpu/tape.h"
#include "problem/case_data.h"

namespace {

using namespace foveal;

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Seconds of one cycle: an addition that depends on the one before takes one.
double seconds_per_cycle() {
  double best = 1;
  for (int repeat = 0; repeat < 5; ++repeat) {
    constexpr int n = 2'000'000;
    std::uint64_t x = 1;
    const double start = cpu_seconds();
    for (int i = 0; i < n; ++i) {
      x += 3;
      asm volatile("" : "+r"(x));
    }
    best = std::min(best, (cpu_seconds() - start) / n);
  }
  return best;
}

template <class Fn>
double cycles_per_16(int elements, Fn fn) {
  std::vector<double> times;
  const double cycle = seconds_per_cycle();
  fn();
  for (int repeat = 0; repeat < 9; ++repeat) {
    const double start = cpu_seconds();
    for (int i = 0; i < 2000; ++i) fn();
    times.push_back((cpu_seconds() - start) / 2000 / cycle / elements * 16);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 4];
}

void measure(const std::string& text, const std::string& target) {
  const problem::CaseData data(problem::parse_line("backward " + text));
  const problem::Problem problem = problem::make_problem(data.line().attention, data.backward_inputs(), data.backward_outputs());
  const cpu::Tape tape(problem, target);
  constexpr int keys = 32, lanes = 64;
  std::vector<std::int32_t> head(lanes, 0), q_idx(lanes);
  for (int i = 0; i < lanes; ++i) q_idx[static_cast<std::size_t>(i)] = 64 + i;
  cpu::TileFrame frame;
  frame.keys = keys;
  frame.lanes = frame.ld = lanes;
  frame.seqlen_q = static_cast<std::int32_t>(problem.seqlen_q);
  frame.seqlen_kv = static_cast<std::int32_t>(problem.seqlen_kv);
  frame.head = head.data();
  frame.q_idx = q_idx.data();
  std::vector<TensorView> params;
  for (std::size_t i = 0; i < problem.params.size(); ++i) params.push_back(data.param(i));
  const cpu::ParamGradPlan plan(problem, 1);
  const auto aligned = [](std::size_t bytes) { return std::aligned_alloc(64, (bytes + 127) / 64 * 64); };
  void* bound_memory = aligned(tape.data_bytes());
  const cpu::TapeData bound = tape.bind(params, bound_memory);
  void* scratch = aligned(tape.scratch_bytes(keys, lanes));
  void* sums = aligned(plan.workspace_bytes());
  std::vector<TensorView> dparams;
  for (std::size_t i = 0; i < problem.params.size(); ++i) dparams.push_back(data.dparam(i));
  plan.clear(sums, dparams, base::default_executor(1));
  const cpu::TapeGrads grads = plan.grads(sums, dparams, 0);
  auto* dots = static_cast<float*>(aligned(keys * lanes * 4));
  auto* out = static_cast<float*>(aligned(keys * lanes * 4));
  for (int i = 0; i < keys * lanes; ++i) {
    dots[i] = static_cast<float>(i % 101) * 0.1f - 5;
    out[i] = 0.001f * static_cast<float>(i % 17);
  }
  float max[lanes] = {};
  const auto forward = [&](bool partial) {
    return cycles_per_16(keys * lanes, [&] { tape.apply<float>(frame, bound, dots, out, partial, max, scratch); });
  };
  std::printf("%-8s", target.c_str());
  if (tape.has_score()) std::printf(" score %6.2f", forward(false));
  if (tape.has_mask()) std::printf(" masked %6.2f", forward(true));
  if (tape.has_backward()) {
    for (int i = 0; i < keys * lanes; ++i) out[i] = 0.001f * static_cast<float>(i % 17);
    std::printf(" backward %6.2f",
                cycles_per_16(keys * lanes, [&] { tape.differentiate<float>(frame, bound, dots, out, &grads, scratch); }));
  }
  std::printf("\n");
  for (void* p : {bound_memory, scratch, sums, static_cast<void*>(dots), static_cast<void*>(out)}) std::free(p);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> lines(argv + 1, argv + argc);
  if (lines.empty()) {
    lines = {
        "f32 h4 q512 d16 mask=\"causal()\"",
        "f32 h4 q512 d16 score=\"score + (kv_idx - q_idx) * exp2(-8 * (head + 1) / 4)\" mask=\"causal()\"",
        "f32 h4 q512 d16 score=\"30 * tanh(score / 30)\"",
        "f32 h4 q512 d16 score=\"score + b[head, clamp(kv_idx - q_idx, -64, 64) + 64]\" param=\"b: real[4, 129] grad\"",
        "f32 h4 q512 d16 score=\"score + b[kv_idx, q_idx]\" param=\"b: real[512, 512] grad\"",
        "f32 h4 q512 d16 score=\"score + b[q_idx, kv_idx]\" param=\"b: real[512, 512] grad\"",
        "f32 h4 q512 d16 score=\"score + b[q_idx] + b[kv_idx]\" param=\"b: real[512] grad\"",
        "f32 h4 q512 d16 score=\"score * sigmoid(g[head])\" param=\"g: real[4] grad\"",
        "f32 h4 q512 d16 score=\"score + b[head, dist[q_idx, kv_idx]]\" param=\"b: real[4, 9] grad\" param=\"dist: integer[512, 512] "
        "integers(0, 8)\"",
        "f32 h4 q512 d16 mask=\"d[q_idx] == d[kv_idx]\" param=\"d: integer[512] segments(5)\"",
        "f32 h4 q512 d16 score=\"score * exp(score)\"",
        "f32 h4 q512 d16 score=\"sin(score)\"",
    };
  }
  for (const std::string& line : lines) {
    std::printf("%s\n", line.c_str());
    for (const char* target : {"scalar", "avx2", "avx512"}) {
#if defined(__x86_64__)
      if (std::string(target) == "avx2" && !__builtin_cpu_supports("avx2")) continue;
      if (std::string(target) == "avx512" && !__builtin_cpu_supports("avx512dq")) continue;
#endif
      std::printf("  ");
      measure(line, target);
    }
  }
}
