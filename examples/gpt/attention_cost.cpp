#include "attention_cost.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace gpt {
namespace {

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace

AttentionCost measure_attention(AttentionKind kind, const AttentionShape& shape) {
  const std::int64_t rows = shape.batch * shape.context;
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  const auto drawn = [&](std::int64_t size) {
    std::vector<float> values(static_cast<std::size_t>(size));
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
    return values;
  };
  const std::vector<float> qkv = drawn(rows * 3 * shape.width()), bias = drawn(shape.bias_size()), dout = drawn(rows * shape.width());
  std::vector<float> out(dout.size()), dqkv(qkv.size()), dbias(bias.size());
  const std::int64_t before = peak_resident_bytes();
  const auto machine = make_host<float>();
  const auto attention = make_attention<float>(kind, shape, *machine);
  double best = 1e30, total = 0;
  for (int repeat = 0; repeat < 2 || total < 0.5; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    attention->forward(qkv.data(), bias.data(), out.data());
    attention->backward(qkv.data(), bias.data(), out.data(), dout.data(), dqkv.data(), dbias.data());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return {static_cast<double>(rows) / best, peak_resident_bytes() - before};
}

std::string to_line(const AttentionCost& cost) { return fmt::format("{:.1f} {}\n", cost.tokens_per_second, cost.peak_bytes); }

AttentionCost measure_attention_apart(AttentionKind kind, const AttentionShape& shape) {
  char self[4096];
  const auto length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length < 0) throw std::runtime_error("attention cost: cannot find this program's own file");
  self[length] = 0;
  const std::string command =
      fmt::format("'{}' --measure {} --context {} --heads {} --width {} --reach {}", self,
                  kind == AttentionKind::fused ? "fused" : "unfused", shape.context, shape.heads, shape.width(), shape.reach);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  AttentionCost cost;
  if (!pipe || std::fscanf(pipe.get(), "%lf %" SCNd64, &cost.tokens_per_second, &cost.peak_bytes) != 2) {
    throw std::runtime_error(fmt::format("attention cost: no answer from {}", command));
  }
  return cost;
}

}  // namespace gpt
