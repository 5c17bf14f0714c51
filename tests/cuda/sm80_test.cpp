// Every configuration that tune can choose for the portable kernels compiles, for sm_80 or sm_90a; the main ones for both, without spills.
#include <gtest/gtest.h>

#include "cuda/arch.h"
#include "cuda/jit/compile.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/kernels_of.h"
#include "cuda/launch/backward_sm80.h"
#include "cuda/launch/checked_reads.h"
#include "cuda/launch/forward_sm80.h"
#include "cuda/launch/param_gradients.h"
#include "cuda/launch/tile_tables.h"
#include "machine_code.h"
#include "nvrtc_here.h"
#include "problems.h"

namespace foveal::cuda {
namespace {

using test::problem_of;

class Sm80 : public test::NeedsNvrtc {};

/// All kernels that tune can choose for a problem.
std::vector<jit::KernelSource> sources_of(const problem::Problem& p) {
  std::vector<jit::KernelSource> sources;
  if (p.pass == Pass::forward) {
    for (const Sm80Config& config : sm80_candidates(p, Sm80Kernel::forward)) sources.push_back(forward_sm80_source(p, config));
    return sources;
  }
  sources.push_back(delta_sm80_source(p));
  for (const Sm80Config& config : sm80_candidates(p, Sm80Kernel::measure))
    sources.push_back(backward_sm80_source(p, Sm80Kernel::measure, config));
  for (const Sm80Config& config : sm80_candidates(p, Sm80Kernel::dq)) sources.push_back(backward_sm80_source(p, Sm80Kernel::dq, config));
  for (const Sm80Config& config : sm80_candidates(p, Sm80Kernel::dkdv))
    sources.push_back(backward_sm80_source(p, Sm80Kernel::dkdv, config));
  Workspace workspace;
  jit::KernelSet kernels;
  const ParamGradients gradients(p, sm80_read_plan(p, sm80_candidates(p, Sm80Kernel::dq).front()), workspace, kernels);
  sources.insert(sources.end(), kernels.sources().begin(), kernels.sources().end());
  return sources;
}

std::vector<std::shared_ptr<const jit::Image>> compile_for(const std::vector<jit::KernelSource>& sources, const std::string& arch) {
  std::vector<jit::KernelSource> placed = sources;
  for (jit::KernelSource& source : placed) source.arch = arch;
  return jit::compile(placed);
}

/// Each configuration on one of the two, by turns: cuda_architectures compiles the chosen ones for all.
void expect_compiles(const std::string& line) {
  std::vector<jit::KernelSource> sources = sources_of(problem_of(line));
  for (std::size_t i = 0; i < sources.size(); ++i) sources[i].arch = i % 2 == 0 ? "sm_80" : "sm_90a";
  for (const auto& image : jit::compile(sources)) EXPECT_GT(image->bytes.size(), 1000u) << line << " " << image->stem;
}

TEST_F(Sm80, MainConfigurationsDoNotSpill) {
  for (const char* dtype : {"bf16", "f32"}) {
    for (const int dim : {64, 128, 256, 512}) {
      for (const char* pass : {"forward", "backward"}) {
        const std::string line =
            std::string(pass) + " " + dtype + " b2 h4 q1024:1024 d" + std::to_string(dim) + " mask=\"kv_idx <= q_idx\"";
        const problem::Problem p = problem_of(line);
        std::vector<jit::KernelSource> sources;
        constexpr std::size_t a100 = 166912;
        if (p.pass == Pass::forward) {
          sources.push_back(forward_sm80_source(p, sm80_choice(p, Sm80Kernel::forward, a100)->config));
        } else {
          sources.push_back(backward_sm80_source(p, Sm80Kernel::dq, sm80_choice(p, Sm80Kernel::dq, a100)->config));
          sources.push_back(backward_sm80_source(p, Sm80Kernel::dkdv, sm80_choice(p, Sm80Kernel::dkdv, a100)->config));
        }
        for (const char* arch : {"sm_80", "sm_90a"}) {
          for (const auto& image : compile_for(sources, arch)) {
            EXPECT_EQ(image->facts.spill_bytes, 0) << line << " " << image->stem << " " << arch << " registers " << image->facts.registers;
          }
        }
      }
    }
  }
}

TEST_F(Sm80, UsesTheInstructionsOfTheArchitecture) {
  using namespace test;
  for (const char* dtype : {"bf16", "f32"}) {
    for (const char* pass : {"forward", "backward"}) {
      const problem::Problem p = problem_of(std::string(pass) + " " + dtype + " b2 h4 q1024:1024 d64 mask=\"kv_idx <= q_idx\"");
      constexpr std::size_t a100 = 166912;
      std::vector<jit::KernelSource> sources;
      if (p.pass == Pass::forward) {
        sources = {forward_sm80_source(p, sm80_choice(p, Sm80Kernel::forward, a100)->config)};
      } else {
        sources = {backward_sm80_source(p, Sm80Kernel::dq, sm80_choice(p, Sm80Kernel::dq, a100)->config),
                   backward_sm80_source(p, Sm80Kernel::dkdv, sm80_choice(p, Sm80Kernel::dkdv, a100)->config)};
      }
      for (const auto& image : compile_for(sources, "sm_80")) {
        auto counts = instructions_of(image->bytes);
        const bool half = size_of(p.dtype) == 2;
        EXPECT_EQ(counts[HMMA] >= 32, half) << p.line() << image->stem;  // fp32 is never rounded to tf32
        EXPECT_EQ(counts[LDSM] >= 8, half) << p.line() << image->stem;
        EXPECT_GE(counts[LDGSTS], 4) << p.line() << image->stem;
        RecordProperty(image->stem + ": " + p.line(), "registers " + std::to_string(image->facts.registers) + ", static shared bytes " +
                                                          std::to_string(image->facts.shared_bytes));
      }
    }
  }
}

TEST_F(Sm80, EveryHeadDimFitsIntoSmallSharedMemory) {
  constexpr std::size_t sm86 = 101376;
  for (const char* dtype : {"bf16", "f32"}) {
    for (const int dim : {1, 40, 64, 72, 128, 192, 256}) {  // larger ones in fp32 need more
      const problem::Problem p = problem_of(std::string("backward ") + dtype + " b1 h1 q64:64 d" + std::to_string(dim));
      for (const Sm80Kernel kernel : {Sm80Kernel::forward, Sm80Kernel::dq, Sm80Kernel::dkdv, Sm80Kernel::pairs, Sm80Kernel::measure}) {
        EXPECT_TRUE(sm80_choice(p, kernel, sm86)) << dtype << " " << dim << " " << static_cast<int>(kernel);
      }
    }
  }
}

TEST_F(Sm80, CheckedReadsAreAPassOfTheirOwn) {
  const std::string reads =
      " mask=\"m[q_idx] <= kv_idx\" score=\"score + t[m[kv_idx], head] + t[where(score > 0, m[q_idx], 0), 0]\" "
      "param=\"m: integer[64]\" param=\"t: real[5, 2]\"";
  for (const char* dtype : {"bf16", "f32", "f64"}) {
    const std::string line = std::string("backward ") + dtype + " b2 h2 q64:64 d16";
    const auto stems = [](const problem::Problem& p) {
      std::vector<std::string> all;
      for (const jit::KernelSource& source : kernels_of(p, "sm_90a", "")) all.push_back(source.stem);
      return all;
    };
    std::vector<std::string> checked = stems(problem_of(line + reads + " checked"));
    EXPECT_EQ(checked.back(), "outside_reads");
    checked.pop_back();
    EXPECT_EQ(checked, stems(problem_of(line + reads)));
    jit::KernelSource source = outside_reads_source(problem_of(line + reads));
    // Five indices may leave; head is proven to stay.
    EXPECT_NE(source.score.find("kIndexReadsScore = true"), std::string::npos);
    EXPECT_EQ(source.score.find("args.param[1].size[1], "), std::string::npos);
    for (const char* arch : {"sm_80", "sm_90a"}) {
      source.arch = arch;
      EXPECT_GT(jit::compile(source)->bytes.size(), 1000u);
    }
    const std::string inside = " score=\"score + t[kv_idx]\" param=\"t: real[64]\"";  // nothing to look for
    EXPECT_EQ(stems(problem_of(line + inside + " checked")), stems(problem_of(line + inside)));
  }
}

TEST_F(Sm80, EveryCandidateCompiles) {
  // One head dim for each row of the tables in tune/sm80.cpp.
  const std::pair<const char*, std::vector<int>> dims_of[] = {
      {"bf16", {64, 96, 128, 192, 256, 512}}, {"f32", {64, 128, 256, 512}}, {"f64", {64, 128}}};
  for (const auto& [dtype, dims] : dims_of) {
    for (const int dim : dims) {
      for (const char* pass : {"forward", "backward"}) {
        expect_compiles(std::string(pass) + " " + dtype + " b2 h4:2 q100:200 d" + std::to_string(dim));
      }
    }
  }
}

TEST_F(Sm80, FeaturesCompileTogether) {
  const std::string features =
      " b2 h4:2 q300 total=500 d64 mask=\"kv_idx <= q_idx and kv_idx < seqlen_kv - 3\" score=\"tanh(score / 30) * 30 + rel[head, "
      "clamp(q_idx - kv_idx, "
      "-8, 8) + 8] * slope[head]\" param=\"rel: real[4, 17] grad\" param=\"slope: real[4] bf16 grad\" dropout=0.1:7";
  expect_compiles("forward bf16" + features);
  expect_compiles("backward bf16" + features);
}

TEST_F(Sm80, EveryReductionCompiles) {
  for (const char* score : {"score * t[head]", "score + t[q_idx] * score", "score + t[kv_idx]", "score + t[q_idx - kv_idx + 128]",
                            "score + t[(q_idx * kv_idx) % 256]"}) {
    const std::string size = std::string(score).find("head") != std::string::npos ? "2" : "256";
    expect_compiles(std::string("backward bf16 b2 h2 q128:128 d64 score=\"") + score + "\" param=\"t: real[" + size + "] grad\"");
  }
  expect_compiles(
      "backward bf16 b2 h2 q128:128 d64 score=\"score + t[batch, head, q_idx, kv_idx]\" param=\"t: real[2, 2, 128, 128] grad\"");
  const problem::Problem shared =
      problem_of("backward bf16 b2 h2 q128:128 d64 score=\"score + t[q_idx, kv_idx]\" param=\"t: real[128, 128] grad\"");
  ASSERT_EQ(gradient_storage(shared)[0], GradientStorage::added);
  const auto source = pairs_sm80_source(shared, sm80_choice(shared, Sm80Kernel::pairs, 166912)->config, 0);
  for (const char* arch : {"sm_80", "sm_90a"}) EXPECT_GT(compile_for({source}, arch)[0]->bytes.size(), 1000u);
}

TEST(Sm80Table, EveryChoiceSaysWhyAndWhereItsFiguresAre) {
  for (const char* dtype : {"bf16", "f16", "f32", "f64"}) {
    for (int dim = 16; dim <= sm80_max_head_dim; dim += 16) {
      const problem::Problem p = problem_of(std::string("backward ") + dtype + " b1 h1 q64:64 d" + std::to_string(dim));
      for (const Sm80Kernel kernel : {Sm80Kernel::forward, Sm80Kernel::dq, Sm80Kernel::dkdv, Sm80Kernel::reads, Sm80Kernel::pairs}) {
        const auto choice = sm80_choice(p, kernel, sm90_shared_limit);
        if (!choice) continue;
        const std::string& why = choice->why;
        EXPECT_GT(why.find(" ("), 0u) << p.line() << ": " << why;
        EXPECT_TRUE(why.ends_with("sm80_test.cpp)") || why.ends_with("architectures.jsonl)")) << p.line() << ": " << why;
      }
    }
  }
}

/// The largest head dim for which a CTA has the shared memory; docs/support.md says the same.
int largest_head_dim(std::size_t shared_bytes, const std::string& dtype, bool forward) {
  const bool small = shared_bytes < 110'000, medium = !small && shared_bytes < 170'000;
  if (dtype == "f64") return small ? (forward ? 256 : 192) : medium ? (forward ? 384 : 320) : forward ? sm80_max_head_dim : 448;
  return dtype == "f32" && small && !forward ? 384 : sm80_max_head_dim;
}

TEST(Sm80Table, SomeRowFitsTheSharedMemoryOfEveryArchitecture) {
  for (const char* arch : {"sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"}) {
    const std::size_t shared_bytes = facts_of_arch(arch, 0).shared_bytes_per_block;
    for (const std::string dtype : {"bf16", "f16", "f32", "f64"}) {
      for (int dim = 16; dim <= sm80_max_head_dim; dim += 16) {
        const problem::Problem p = problem_of("backward " + dtype + " b1 h1 q64:64 d" + std::to_string(dim) +
                                              " mask=\"causal()\" score=\"score + t[q_idx]\" param=\"t: real[64] grad\"");
        for (const Sm80Kernel kernel : {Sm80Kernel::forward, Sm80Kernel::dq, Sm80Kernel::dkdv}) {
          const bool fits = dim <= largest_head_dim(shared_bytes, dtype, kernel == Sm80Kernel::forward);
          EXPECT_EQ(sm80_choice(p, kernel, shared_bytes).has_value(), fits) << arch << ", " << sm80_stem(kernel) << ": " << p.line();
        }
      }
    }
  }
}

TEST_F(Sm80, TwoScanCompiles) {
  for (const char* dims : {"d64", "d128", "d256"}) {
    const problem::Problem p = problem_of(std::string("backward bf16 b1 h2 q128:128 ") + dims);
    const auto choice = two_scan_choice(p, 232448);
    ASSERT_TRUE(choice) << dims;
    EXPECT_GT(compile_for({backward_sm80_source(p, Sm80Kernel::two_scan, choice->config)}, "sm_90a")[0]->bytes.size(), 1000u);
  }
}

TEST_F(Sm80, MasksThatReadDataAreClassifiedOnTheDevice) {
  Workspace workspace;
  const problem::Problem p =
      problem_of("forward bf16 b2 h2 q256:256 d64 mask=\"doc[q_idx] == doc[kv_idx]\" param=\"doc: integer[256] i32\"");
  for (const bool transposed : {false, true}) {
    TileTables tables(p, 64, 64, transposed, workspace);
    jit::KernelSet kernels;
    tables.add_to(kernels);
    ASSERT_EQ(kernels.sources().size(), 2u);
    for (const char* arch : {"sm_80", "sm_90a"})
      for (const auto& image : compile_for(kernels.sources(), arch)) EXPECT_GT(image->bytes.size(), 1000u);
  }
  const problem::Problem causal = problem_of("forward bf16 b2 h2 q256:256 d64 mask=\"kv_idx <= q_idx\"");
  const TileTables tables(causal, 64, 64, false, workspace);
  EXPECT_FALSE(tables.needs_data());
  EXPECT_EQ(tables.empty, 4 * 6);
  EXPECT_EQ(tables.partial, 4 * 4);
  EXPECT_EQ(tables.full, 4 * 6);
}

}  // namespace
}  // namespace foveal::cuda
