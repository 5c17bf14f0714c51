// What a sequence of calls compiles and loads, counted: caches that grow by a key a step.
#include <gtest/gtest.h>

#include <fstream>

#include "cuda/jit/compile.h"
#include "cuda/jit/disk_cache.h"
#include "cuda/launch/forward_sm90.h"
#include "foveal/score.h"
#include "mock_driver.h"
#include "mock_plan.h"

namespace foveal {
namespace {

/// Kernels of foveal are compiled by a compiler that gives nothing, and none are on disk.
class Plans : public testing::Test {
 protected:
  Plans() {
    setenv("FOVEAL_NVRTC_PATH", FOVEAL_MOCK_NVRTC, 1);
    cuda::jit::set_cache_folder("");
  }
  static void* address(std::uintptr_t n) { return reinterpret_cast<void*>((n + 1) << 40); }

  /// One query for each of 32 heads over `length` keys of a cache that holds `most`; the query is the last position.
  static void decode(Attention attention, std::int64_t length, std::int64_t most = 8192, const std::vector<ParamBinding>& params = {}) {
    constexpr std::int64_t heads = 32, heads_kv = 8, dim = 128;
    const Device gpu{DeviceKind::cuda, 0};
    attention.q_offset = length - 1;
    const auto cache = [&](std::uintptr_t n) {
      return TensorView(address(n), DType::bf16, {1, length, heads_kv, dim}, {most * heads_kv * dim, heads_kv * dim, dim, 1}, gpu);
    };
    const TensorView q(address(0), DType::bf16, {1, 1, heads, dim}, gpu), out(address(3), DType::bf16, {1, 1, heads, dim}, gpu),
        lse(address(4), DType::f32, {1, heads, 1}, gpu);
    forward(attention, {.q = q, .k = cache(1), .v = cache(2), .params = params}, {.out = out, .lse = lse});
  }

  struct Counted {
    int compiled;
    long loaded;
  };
  /// What fn adds.
  template <class Fn>
  static Counted count(Fn&& fn) {
    const int before = cuda::jit::compilations().compiled;
    mock::count_calls();
    fn();
    return {cuda::jit::compilations().compiled - before, mock::count_calls()["cuLibraryLoadData"]};
  }
};

Attention scored(const char* score) {
  Attention attention;
  if (*score) attention.score_mod = parse(score);
  return attention;
}

TEST_F(Plans, ACacheThatGrowsCompilesAndLoadsNothingNew) {
  std::vector<Attention> attentions{scored(""), scored("tanh(score / 30) * 30"),
                                    scored("score + to_real(kv_idx - q_idx) * exp2(-8.0 * to_real(head + 1) / 32.0)")};
  attentions.push_back(attentions[0]);
  attentions.back().mask = parse("kv_idx > q_idx - 1000");
  attentions.push_back(attentions[0]);
  attentions.back().mask = parse("kv_idx <= q_idx");
  for (const Attention& attention : attentions) {
    decode(attention, 3000);
    decode(attention, 4200);
    const Counted counted = count([&] {
      for (std::int64_t length = 3001; length < 4001; ++length) decode(attention, length);
      for (std::int64_t length = 4201; length < 5201; ++length) decode(attention, length, 5000 + length);  // a cache that is allocated anew
    });
    EXPECT_EQ(counted.compiled, 0) << attention.score_mod.present();
    EXPECT_EQ(counted.loaded, 0) << attention.score_mod.present();
  }
}

TEST_F(Plans, WhatCountsIsCounted) {
  const Counted counted = count([] { decode(scored("score * 3.5 + tanh(score)"), 777); });
  EXPECT_GE(counted.compiled, 1);  // its own, and that which merges splits, unless another test took it before
  EXPECT_EQ(counted.loaded, counted.compiled);
}

std::vector<std::string> decode_lines() {
  std::ifstream file(std::string(FOVEAL_SOURCE_DIR) + "/tests/cuda/lines/few_queries.txt");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (line.rfind("forward", 0) == 0) lines.push_back(line);
  EXPECT_GT(lines.size(), 100u);
  return lines;
}

TEST_F(Plans, LengthsTakeTheKernelsThatTheyHadByThemselves) {
  int kernels = 0;
  for (const std::string& line : decode_lines()) {
    const problem::Problem p = problem::problem_of(problem::parse_line(line), {DeviceKind::cuda, 0});
    const auto executable = cuda::executable_of(p, "sm_90a", "");
    auto config = cuda::sm90_forward_choice(p, "sm_90a");
    const cuda::jit::KernelSource& taken = executable->sources().front();
    if (!config || taken.stem != "forward_sm90") continue;
    config->config.split_kv = taken.constants.text().find("kSplit = true") != std::string::npos;
    const cuda::jit::KernelSource own = cuda::forward_sm90_source(p, config->config);
    EXPECT_EQ(taken.constants.text(), own.constants.text()) << line;
    EXPECT_EQ(taken.score, own.score) << line;
    ++kernels;
  }
  EXPECT_GT(kernels, 100);
}

}  // namespace
}  // namespace foveal
