// Training steps on the CPU with random shapes, programs, types and layouts, for so many minutes: memory must stay flat within 1 %, and the
// first problems must give the same bits at the end. Writes one JSON object; fails where either does not hold.
//
//   soak FIRST_SEED MINUTES [FILE]
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "base/hash.h"
#include "check/run.h"
#include "problem/random_line.h"

using namespace foveal;

namespace {

constexpr int steps = 3;              // of gradient descent, for each problem
constexpr std::uint64_t warm = 1000;  // problems before memory is looked at

/// Along the gradient of every tensor that has one.
void descend(problem::CaseData& data) {
  const auto step = [](const TensorView& value, const TensorView& gradient) {
    if (!value.present() || !gradient.present()) return;
    std::vector<double> values = problem::values_of(value);
    const std::vector<double> slopes = problem::values_of(gradient);
    for (std::size_t i = 0; i < values.size(); ++i)
      if (std::isfinite(slopes[i])) values[i] -= 1e-3 * slopes[i];
    problem::set_values(value, values);
  };
  for (const char* role : {"q", "k", "v"}) step(data.view(role), data.view(std::string("d") + role));
  for (std::size_t i = 0; i < data.line().params.size(); ++i)
    if (data.line().params[i].grad) step(data.param(i), data.dparam(i));
}

/// Larger than every random one: threads keep the largest workspace that they needed.
problem::Line largest(const char* strategy) {
  return problem::parse_line(std::string("backward f64 b3 h12:3 q160 d512 score=\"tanh(score) + bias[head, q_idx, kv_idx] * score\" ") +
                             "param=\"bias: real[12, 160, 160] f64 grad=f64\" dropout=0.1 strategy=" + strategy);
}

/// The bits of everything that the steps of a problem gave.
std::string train(const problem::Line& line) {
  problem::CaseData data(line);
  std::string bits;
  for (int i = 0; i < steps; ++i) {
    check::run_case(data, {.backend = "cpu"});
    for (const auto& [name, block] : data.blocks())
      bits += std::to_string(base::hash64({reinterpret_cast<const char*>(block.bytes.get()), block.size}));
    if (data.line().pass == Pass::backward) descend(data);
  }
  if (const std::string damaged = data.damage(); !damaged.empty())
    throw Error(ErrorCode::device, "memory beside " + damaged + " was written");
  return bits;
}

std::string train(std::uint64_t seed) {
  base::Random random(seed);
  return train(problem::random_line(random));
}

/// Bytes that were allocated and not freed.
double in_use() {
  const struct mallinfo2 now = mallinfo2();
  return static_cast<double>(now.uordblks + now.hblkhd);
}

}  // namespace

int main(int argc, char** argv) {
  const auto first = std::strtoull(argc > 1 ? argv[1] : "1", nullptr, 10);
  const double minutes = argc > 2 ? std::atof(argv[2]) : 15;
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 60; };

  const bool short_run = minutes < 1;                   // of the tests: memory is not judged
  const std::uint64_t repeated = short_run ? 40 : 600;  // problems that are run again and again: more than there are plans in the cache
  // Memory is compared where the same problems came last, so that the caches hold the same plans.
  std::vector<std::string> before;
  long changed = 0, compared = 0;
  const auto repeat = [&] {
    for (std::uint64_t i = 0; i < repeated; ++i) {
      std::string bits = train(first + i);
      if (before.size() <= i) {
        before.push_back(std::move(bits));
      } else {
        ++compared, changed += bits != before[i];
      }
    }
    return in_use();
  };
  std::uint64_t seed = first + repeated;
  const auto go_on = [&](std::uint64_t count) {
    for (; count > 0 && elapsed() < minutes; --count) train(seed++);
  };
  for (const char* strategy : {"fused", "split", "two_scan"})
    if (!short_run) train(largest(strategy));
  repeat();
  go_on(warm);
  std::vector<double> bytes{repeat()};
  while (elapsed() < minutes) {
    go_on(2000);
    bytes.push_back(repeat());
    std::fprintf(stderr, "%.1f min: seed %llu, %.3f MB, %ld of %ld results changed\n", elapsed(), static_cast<unsigned long long>(seed),
                 bytes.back() / 1e6, changed, compared);
  }
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  const bool judged = !short_run && seed >= first + repeated + warm, flat = !judged || *most <= 1.01 * *least;
  std::ofstream file;
  if (argc > 3) file.open(argv[3]);
  (argc > 3 ? static_cast<std::ostream&>(file) : std::cout)
      << "{\"first_seed\": " << first << ", \"minutes\": " << std::round(10 * elapsed()) / 10 << ", \"problems\": " << seed - first
      << ", \"steps\": " << (seed - first - repeated + before.size() + static_cast<std::uint64_t>(compared)) * steps
      << ", \"memory_judged\": " << (judged ? "true" : "false") << ", \"first_mb\": " << bytes.front() / 1e6
      << ", \"least_mb\": " << *least / 1e6 << ", \"most_mb\": " << *most / 1e6 << ", \"last_mb\": " << bytes.back() / 1e6
      << ", \"compared\": " << compared << ", \"changed\": " << changed << "}\n";
  if (!flat) std::fprintf(stderr, "memory in use went from %.3f to %.3f MB\n", *least / 1e6, *most / 1e6);
  if (changed > 0) std::fprintf(stderr, "%ld problems gave other bits\n", changed);
  return flat && changed == 0 ? 0 : 1;
}
