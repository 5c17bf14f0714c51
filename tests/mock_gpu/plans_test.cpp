// What a sequence of calls compiles and loads, counted: programs that differ in numbers, caches that grow by a key a step.
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <regex>

#include "base/check.h"
#include "cuda/device/outside_args.cuh"
#include "cuda/device/param_gradient_args.cuh"
#include "cuda/device/sm90_args.cuh"
#include "cuda/device/tile_classes.cuh"
#include "cuda/jit/compile.h"
#include "cuda/jit/disk_cache.h"
#include "cuda/jit/image_file.h"
#include "cuda/jit/shipped.h"
#include "cuda/launch/forward_sm90.h"
#include "cuda/score/score_emit.h"
#include "foveal/score.h"
#include "mock_driver.h"
#include "mock_plan.h"
#include "own_folder.h"
#include "plan/choose.h"

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
    long loaded, planned;
  };
  /// What fn adds.
  template <class Fn>
  static Counted count(Fn&& fn) {
    const int compiled = cuda::jit::compilations().compiled;
    const long planned = planning::choices_made();
    mock::count_calls();
    fn();
    return {cuda::jit::compilations().compiled - compiled, mock::count_calls()["cuLibraryLoadData"], planning::choices_made() - planned};
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
    EXPECT_EQ(counted.planned, 2000) << "a plan is its lengths' own";
    EXPECT_EQ(count([&] { decode(attention, 5199, 10199), decode(attention, 5200, 10200); }).planned, 0);
  }
}

/// What people do all day: layers of one model, another score, its numbers changed, a longer cache, and all of it again.
TEST_F(Plans, ASequenceOfProgramsAndLengthsPlansAndCompilesWhatIsNew) {
  const auto capped = [](const char* cap) {
    return scored(("tanh(score / " + std::string(cap) + ") * " + cap + " + 0.001 * to_real(q_idx - kv_idx)").c_str());
  };
  const auto layers = [&](const Attention& attention, std::int64_t length) {
    for (int layer = 0; layer < 30; ++layer) decode(attention, length);
  };
  const Attention thirty = capped("30.5"), fifty = capped("50.5");
  const Counted first = count([&] { layers(thirty, 1900); });
  EXPECT_EQ(first.planned, 1);
  EXPECT_GE(first.compiled, 1);
  const Counted longer = count([&] { layers(thirty, 1901), layers(thirty, 1902); });
  EXPECT_EQ(longer.planned, 2);
  EXPECT_EQ(longer.compiled + longer.loaded, 0);
  const Counted changed = count([&] { layers(fifty, 1900), layers(capped("50.5"), 1900); });
  EXPECT_EQ(changed.planned, 1) << "and that which means the same";
  EXPECT_EQ(changed.compiled + changed.loaded, 0);
  const Counted again = count([&] { layers(thirty, 1901), layers(fifty, 1900), layers(thirty, 1900); });
  EXPECT_EQ(again.planned + again.compiled + again.loaded, 0);
}

std::string with(std::string score, const std::string& number) {
  for (std::size_t at = 0; (at = score.find('#', at)) != std::string::npos;) score.replace(at, 1, number);
  return score;
}

/// Sources of no other test, by a name for a type that no kernel uses.
cuda::jit::KernelSource source_named(const std::string& name) {
  cuda::jit::KernelSource source{.stem = "param_gradient", .arch = "sm_90a"};
  source.constants.set_type("Gradient", "float")
      .set_type("Value", "float")
      .set_struct("kConfig", "ParamGradientConfig", "param_gradient_args.cuh", device::ParamGradientConfig{.bin_bits = 8})
      .set_type(name, "int");
  return source;
}

TEST_F(Plans, KernelsThatCameWithTheLibraryAreNotCompiled) {
  const test::OwnFolder own;
  const auto ship = [&](const std::string& compiler, const cuda::jit::KernelSource& source, const std::string& bytes) {
    std::ofstream(own / "compiler") << compiler << "\n";
    cuda::jit::Image image;
    image.key = cuda::jit::key_of(source, compiler);
    image.stem = source.stem, image.arch = source.arch, image.bytes = bytes;
    std::ofstream(own / (image.key + ".kernel")) << encode(image);
    cuda::jit::set_shipped_folder(own.path().string());
    return own / (image.key + ".kernel");
  };
  const auto compiled = [](const cuda::jit::KernelSource& source) {
    const cuda::jit::Compilations before = cuda::jit::compilations();
    const auto image = cuda::jit::compile(source);
    const cuda::jit::Compilations after = cuda::jit::compilations();
    EXPECT_EQ(after.shipped + after.compiled, before.shipped + before.compiled + 1);
    return std::pair(after.compiled > before.compiled, image->bytes);
  };
  ship("12.9 of others", source_named("Shipped"), "shipped");
  EXPECT_EQ(compiled(source_named("Shipped")), std::pair(false, std::string("shipped")));
  EXPECT_TRUE(compiled(source_named("NotShipped")).first);
  const std::string damaged = ship("12.9 of others", source_named("Damaged"), "shipped");
  std::filesystem::resize_file(damaged, std::filesystem::file_size(damaged) - 1);
  EXPECT_TRUE(compiled(source_named("Damaged")).first);
  ship("14.0 of the future", source_named("Newer"), "shipped");
  EXPECT_EQ(cuda::jit::shipped_kernels().unusable, "compiled by CUDA 14.0, the driver knows CUDA 13.0");
  EXPECT_TRUE(compiled(source_named("Newer")).first);
  cuda::jit::set_shipped_folder("");
}

TEST_F(Plans, KernelsThatCameWithTheLibraryRunWithoutACompiler) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own, where no compiler was found yet
  const auto run = [] {
    setenv("FOVEAL_NVRTC_PATH", "/nowhere", 1);
    const test::OwnFolder own;
    std::ofstream(own / "compiler") << "12.9 of others\n";
    const problem::Line line = problem::parse_line("forward bf16 b1 h32:8 q1:5000 d128");
    for (const auto& source : cuda::kernels_of(problem::problem_of(line, {DeviceKind::cuda, 0}), "sm_90a", "")) {
      cuda::jit::Image image;
      image.key = cuda::jit::key_of(source, "12.9 of others");
      image.stem = source.stem, image.arch = source.arch, image.bytes = "shipped";
      std::ofstream(own / (image.key + ".kernel")) << encode(image);
    }
    cuda::jit::set_shipped_folder(own.path().string());
    decode(scored(""), 5000);
    std::string refused;
    try {
      decode(scored("score * 3 + tanh(score)"), 5000);
    } catch (const Error& error) {
      refused = error.code() == ErrorCode::unsupported ? error.what() : "";
    }
    const bool told = refused.find("decode_sm90 did not come with the library, and FOVEAL_NVRTC_PATH names /nowhere") != std::string::npos;
    std::filesystem::remove_all(own.path());
    std::_Exit(told && cuda::jit::compilations().shipped > 0 && cuda::jit::compilations().compiled == 0 ? 0 : 1);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST_F(Plans, ProgramsThatDifferInNumbersShareKernels) {
  const char* scores[] = {"tanh(score / #) * #", "score + to_real(kv_idx - q_idx) * exp2(-# * to_real(head + 1) / 24.0)",
                          "score * # - 0.1 * to_real(abs(q_idx - kv_idx))", "score + clamp(# * score, -#, #)",
                          "score * sigmoid(score * #)"};
  for (const char* score : scores) {
    const auto run = [&](int i) {
      const std::string line = " bf16 b1 h4 q300 d64 mask=\"kv_idx <= q_idx\" score=\"" + with(score, std::to_string(3 + 0.37 * i)) + "\"";
      for (const char* pass : {"forward", "backward"}) {
        const problem::Problem p = problem::problem_of(problem::parse_line(pass + line), {DeviceKind::cuda, 0});
        const auto executable = cuda::executable_of(p, "sm_90a", "");
        executable->load(cuda::jit::compile(executable->sources()));
      }
    };
    run(0);
    const Counted counted = count([&] {
      for (int i = 1; i <= 100; ++i) run(i);
    });
    EXPECT_EQ(counted.compiled, 0) << score;
    EXPECT_EQ(counted.loaded, 0) << score;
  }
}

TEST_F(Plans, WindowsOfAnySizeShareKernels) {
  const auto run = [](int window) {
    for (const char* pass : {"forward", "backward"}) {
      const std::string line = base::join(pass, " f16 b1 h4 q3000 d64 mask=\"(kv_idx <= q_idx) & (q_idx - kv_idx < ", window, ")\"");
      const auto executable = cuda::executable_of(problem::problem_of(problem::parse_line(line), {DeviceKind::cuda, 0}), "sm_90a", "");
      executable->load(cuda::jit::compile(executable->sources()));
    }
  };
  run(1000);
  const Counted counted = count([&] {
    for (int window = 500; window < 600; ++window) run(window);
  });
  EXPECT_EQ(counted.compiled, 0);
  EXPECT_EQ(counted.loaded, 0);
}

/// Backward passes ask the mask for single pairs when they measure far rows and mend gradients: it is there as limits or as a program, in each of their kernels.
TEST_F(Plans, KernelsThatAskForPairsKnowTheMask) {
  const auto sources = [](const std::string& rest) {
    const std::string line = "backward bf16 b2 h4 q300 d64 mask=\"" + rest;
    return cuda::executable_of(problem::problem_of(problem::parse_line(line), {DeviceKind::cuda, 0}), "sm_90a", "")->sources();
  };
  const auto has = [](const std::string& text, const char* what) { return text.find(what) != std::string::npos; };
  const auto limits = sources("kv_idx <= q_idx\""), program = sources("(q_idx * kv_idx) % 7 < 3\"");
  for (const std::size_t i : {1u, 2u}) {
    EXPECT_TRUE(has(limits[i].constants.text(), "mask_is_band = true")) << limits[i].stem;
    EXPECT_TRUE(has(limits[i].score, "extern __device__ bool mask_keep(")) << limits[i].stem;
    EXPECT_TRUE(has(program[i].constants.text(), "mask_is_band = false")) << program[i].stem;
    const std::string keep = program[i].score.substr(program[i].score.find("bool mask_keep("));
    EXPECT_TRUE(has(keep.substr(0, keep.find("\n}")), "* v")) << program[i].stem << keep;
  }
}

TEST_F(Plans, EachPlanHasItsNumbers) {
  static std::vector<float> seen;
  for (const float cap : {30.0f, 50.0f}) {
    seen.clear();
    mock::call_for_launches([](const cuda::driver::LaunchConfig&, const void* argument, std::size_t bytes) {
      ASSERT_EQ(bytes, sizeof(device::Sm90Args));
      const float* numbers = static_cast<const device::Sm90Args*>(argument)->attention.score.number;
      seen.assign(numbers, numbers + 3);
    });
    decode(scored(with("tanh(score / #) * #", std::to_string(cap)).c_str()), 100);
    mock::call_for_launches(nullptr);
    EXPECT_EQ(seen, (std::vector<float>{cap, static_cast<float>(1.0 / static_cast<double>(cap)), 0})) << cap;
  }
}

std::vector<std::string> lines_of(const std::string& name) {
  std::ifstream file(std::string(FOVEAL_SOURCE_DIR) + "/tests/cuda/lines/" + name);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  return lines;
}

/// With numbers for the places where kernels find them, and these as floats.
std::string told(const std::string& text, const std::vector<float>& numbers) {
  static const std::regex number("args\\.number\\[([0-9]+)\\]|real\\((-?[0-9][^()]*)\\)");
  std::string told;
  auto rest = text.begin();
  for (std::sregex_iterator found(text.begin(), text.end(), number), end; found != end; ++found) {
    told.append(rest, text.begin() + found->position());
    const float value = (*found)[1].matched ? numbers.at(std::stoul((*found)[1])) : static_cast<float>(std::stod((*found)[2]));
    told += base::join("<", std::bit_cast<unsigned>(value), ">");
    rest = text.begin() + found->position() + found->length();
  }
  return told.append(rest, text.end());
}

TEST_F(Plans, TextsWithNumbersSayWhatTextsWithoutDo) {
  int with_numbers = 0;
  const std::vector<std::string> lines = lines_of("programs.txt");
  for (std::size_t i = 0; i < lines.size(); i += 2) {
    const problem::Problem plain = problem::problem_of(problem::parse_line(lines[i]), {DeviceKind::cuda, 0});
    problem::Problem p = plain;
    p.numbers = std::make_shared<std::vector<float>>();
    for (const cuda::Ahead& ahead : {cuda::Ahead{}, cuda::Ahead{.pairs = true, .tanh = true}}) {
      const std::string text = cuda::emit_score(p, ahead);
      EXPECT_TRUE(told(text, *p.numbers) == told(cuda::emit_score(plain, ahead), {})) << lines[i];
    }
    with_numbers += !p.numbers->empty();
  }
  EXPECT_GT(with_numbers, 50);
}

/// Of a launch whose kernel may evaluate a score; otherwise null.
const float* numbers_of(const void* argument, std::size_t bytes) {
  const auto is = [&](std::size_t size) { return bytes == size; };
  if (is(sizeof(device::Sm90Args))) return static_cast<const device::Sm90Args*>(argument)->attention.score.number;
  if (is(sizeof(device::PairsArgs))) return static_cast<const device::PairsArgs*>(argument)->sm90.attention.score.number;
  const bool first = is(sizeof(device::AttentionArgs)) || is(sizeof(device::ClassifyArgs)) || is(sizeof(device::OutsideArgs));
  return first ? static_cast<const device::AttentionArgs*>(argument)->score.number : nullptr;
}

TEST_F(Plans, EachLaunchHasTheNumbersOfItsText) {
  static std::vector<std::vector<float>> launched;
  int with_numbers = 0;
  for (const char* name : {"programs.txt", "trained_dims.txt", "few_queries.txt"}) {
    const std::vector<std::string> lines = lines_of(name);
    for (std::size_t i = 0; i < lines.size(); i += 5)
      for (const char* arch : {"sm_90a", "sm_80"}) {
        std::unique_ptr<test::MockPlan> plan;
        try {
          plan = std::make_unique<test::MockPlan>(problem::parse_line(lines[i]), arch);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::unsupported) << lines[i] << ": " << error.what();
          continue;
        }
        launched.clear();
        mock::call_for_launches([](const cuda::driver::LaunchConfig&, const void* argument, std::size_t bytes) {
          if (const float* numbers = numbers_of(argument, bytes)) launched.emplace_back(numbers, numbers + device::kMaxNumbers);
        });
        plan->run();
        mock::call_for_launches(nullptr);
        int used = 0;
        for (const cuda::jit::KernelSource& source : plan->executable->sources())
          for (int k = 0; k < device::kMaxNumbers; ++k)
            if (source.score.find(base::join("args.number[", k, "]")) != std::string::npos) used = std::max(used, k + 1);
        ASSERT_FALSE(launched.empty()) << lines[i];
        for (const std::vector<float>& numbers : launched) {
          EXPECT_EQ(numbers, launched[0]) << arch << ": " << lines[i];
          for (int k = 0; k < used; ++k) EXPECT_NE(numbers[static_cast<std::size_t>(k)], 0) << arch << ": " << lines[i];
        }
        with_numbers += used > 0;
      }
  }
  EXPECT_GT(with_numbers, 40);
}

TEST_F(Plans, NumbersThatChangeWhatIsComputedStayInTheText) {
  const auto score_of = [](const std::string& score) {
    const problem::Problem p =
        problem::problem_of(problem::parse_line("forward bf16 b1 h4 q300 d64 score=\"" + score + "\""), {DeviceKind::cuda, 0});
    return cuda::executable_of(p, "sm_90a", "")->sources().front().score;
  };
  const auto differ = [&](const std::string& a, const std::string& b) { return score_of(a) != score_of(b); };
  EXPECT_FALSE(differ("score + tanh(score * 3.5)", "score + tanh(score * 4.5)"));
  EXPECT_TRUE(differ("score + tanh(score * 3.5)", "score + tanh(score * -3.5) * 3.25"));
  EXPECT_TRUE(differ("score * 2", "score * 3"));                                                            // short arithmetic
  EXPECT_TRUE(differ("pow(abs(score), 3.0)", "pow(abs(score), 4.0)"));                                      // a power
  EXPECT_TRUE(differ("score + floor(to_real(q_idx) * 0.3)", "score + floor(to_real(q_idx) * 0.4)"));        // a discrete result
  EXPECT_TRUE(differ("score + to_real((q_idx - kv_idx) // 3)", "score + to_real((q_idx - kv_idx) // 5)"));  // of integers
}

TEST_F(Plans, WhatCountsIsCounted) {
  const Counted counted = count([] { decode(scored("score * 3.5 + tanh(score)"), 777); });
  EXPECT_GE(counted.compiled, 1);  // its own, and that which merges splits, unless another test took it before
  EXPECT_GE(counted.loaded, counted.compiled);
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
    problem::Problem p = problem::problem_of(problem::parse_line(line), {DeviceKind::cuda, 0});
    const auto executable = cuda::executable_of(p, "sm_90a", "");
    p.numbers = std::make_shared<std::vector<float>>();
    auto config = cuda::sm90_forward_choice(p, "sm_90a");
    const cuda::jit::KernelSource& taken = executable->sources().front();
    if (!config || taken.stem != config->config.kernel()) continue;
    config->config.split_kv = taken.constants.text().find("split_kv = true") != std::string::npos;
    const cuda::jit::KernelSource own = cuda::forward_sm90_source(p, config->config);
    EXPECT_EQ(taken.constants.text(), own.constants.text()) << line;
    EXPECT_TRUE(taken.score == own.score) << line;
    ++kernels;
  }
  EXPECT_GT(kernels, 100);
}

}  // namespace
}  // namespace foveal
