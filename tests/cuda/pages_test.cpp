// Keys and values on pages: which kernels serve them, and what these consist of.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/check.h"
#include "cuda/jit/compile.h"
#include "cuda/kernels_of.h"
#include "machine_code.h"
#include "nvrtc_here.h"
#include "problems.h"

namespace foveal::cuda {
namespace {

using test::problem_of;

std::string kernel_of(const std::string& line, const std::string& arch = "sm_90a") {
  return executable_of(problem_of(line), arch, "")->kernel();
}

std::vector<std::string> stems_of(const std::string& line, const std::string& arch = "sm_90a") {
  std::vector<std::string> stems;
  for (const jit::KernelSource& source : kernels_of(problem_of(line), arch, "")) stems.push_back(source.stem);
  return stems;
}

bool gathers(const std::string& line, const std::string& arch = "sm_90a") {
  const auto stems = stems_of(line, arch);
  return std::count(stems.begin(), stems.end(), "gather_pages") == 2;
}

TEST(Pages, HopperForwardReadsThemWhereTheyAre) {
  EXPECT_EQ(kernel_of("forward bf16 b8 h32:8 q1:8192 d128 pages=64"), "cuda.sm90.bf16.decode.packed.paged");
  EXPECT_EQ(kernel_of("forward bf16 b1 h32:8 q1:8192 d128 pages=16"), "cuda.sm90.bf16.decode.packed.split.paged");
  EXPECT_EQ(kernel_of("forward f16 b2 h8:2 q300:640 d64 pages=48 mask=\"causal()\""), "cuda.sm90.f16.forward.paged");
  EXPECT_EQ(stems_of("forward bf16 b2 h8:2 layout=thd lengths=64:64,100:500 d128 pages=16"), std::vector<std::string>{"decode_sm90"});
}

TEST(Pages, OtherPassesSeeKeysTogether) {
  const auto gathered = [](const char* line, const char* arch, const char* kernel) {
    EXPECT_TRUE(gathers(line, arch)) << line;
    EXPECT_EQ(kernel_of(line, arch), std::string(kernel) + ".gathered");
  };
  gathered("backward bf16 b2 h8:2 q300:640 d128 pages=64", "sm_90a", "cuda.sm90.bf16.backward.fused");
  gathered("backward f32 b2 h8:2 q300:640 d64 pages=64", "sm_90a", "cuda.sm80.f32.backward.split");
  gathered("forward f32 b2 h8:2 q300:640 d64 pages=64", "sm_90a", "cuda.sm80.f32.forward");
  gathered("forward bf16 b2 h8:2 q300:640 d64 pages=64", "sm_80", "cuda.sm80.bf16.forward");
  // TMA needs neighbours along the head dim; reads are checked by a kernel that knows no pages.
  gathered("forward bf16 b2 h8:2 q300:640 d64 pages=64 layout=dim_first", "sm_90a", "cuda.sm80.bf16.forward");
  gathered("forward bf16 b2 h2 q9:64 d64 pages=64 score=\"score + t[m[kv_idx]]\" param=\"t: real[9]\" param=\"m: integer[64]\" checked",
           "sm_90a", "cuda.sm90.bf16.decode");
}

TEST(Pages, GradientsAreSummedOnlyWhereTheyAreWanted) {
  const auto sums = [](const std::string& grads) {
    const auto stems = stems_of("backward bf16 b2 h2 q65:300 d64 pages=16 grads=" + grads);
    return std::count(stems.begin(), stems.end(), "sum_pages") + std::count(stems.begin(), stems.end(), "list_page_uses");
  };
  EXPECT_EQ(sums("dq"), 0);
  EXPECT_EQ(sums("dk"), 2);
  EXPECT_EQ(sums("dv"), 2);
}

/// Kernels that know batches of keys only are asked about batches of keys only.
TEST(Pages, PassesForReadsOfBatchesAreLeftOut) {
  const auto has = [](const std::string& line, const char* stem) {
    const auto stems = stems_of(line);
    return std::count(stems.begin(), stems.end(), stem) > 0;
  };
  const std::string of_query =
      "backward bf16 b2 h2 q500:512 d64 score=\"score + r[batch, head, q_idx, kv_idx % 64]\" param=\"r: real[2, 2, 500, 64] grad\"";
  const std::string of_pair =
      "backward bf16 b2 h4 q128:320 d64 score=\"score + bias[head, q_idx, kv_idx]\" param=\"bias: real[4, 128, 320] grad\"";
  EXPECT_TRUE(has(of_query, "rows_sm90"));
  EXPECT_TRUE(has(of_pair, "pairs_sm90"));
  EXPECT_FALSE(has(of_query + " pages=16", "rows_sm90"));
  EXPECT_FALSE(has(of_pair + " pages=16", "pairs_sm90"));
}

TEST(Pages, WhatTheDeviceCannotCountIsRefused) {
  problem::Problem p = problem_of("forward bf16 b2 h8:2 q1:640 d128 pages=64");
  p.seqlens_kv.strides[0] = 2;
  try {
    (void)kernels_of(p, "sm_90a", "");
    FAIL() << "lengths with a stride";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("seqlens_kv: stride 2; expected 1"), std::string::npos) << error.what();
  }
}

class PagesKernels : public test::NeedsNvrtc {};

/// Boxes of a page's rows are loads of their own lanes: as many instructions as without pages, and a loop over lanes around them.
TEST_F(PagesKernels, LoadBoxesByTma) {
  for (const char* line : {"b8 h32:8 q1:8192 d128", "b2 h8:2 q300:640 d128 mask=\"causal()\""}) {
    const std::string forward = std::string("forward bf16 ") + line;
    const auto compiled = [](const std::string& text) {
      jit::KernelSource source = kernels_of(problem_of(text), "sm_90a", "").front();
      EXPECT_EQ(source.stem, text.find(" q1:") != std::string::npos ? "decode_sm90" : "forward_sm90") << text;
      source.arch = "sm_90a";
      return jit::compile(source);
    };
    const auto plain = test::instructions_of(compiled(forward)->bytes);
    for (const char* pages : {" pages=16", " pages=64"}) {
      const auto image = compiled(forward + pages);
      EXPECT_FALSE(image->facts.serialized) << forward << pages << "\n" << image->facts.notes;
      EXPECT_LE(image->facts.spill_bytes, 0) << forward << pages;
      auto paged = test::instructions_of(image->bytes);
      EXPECT_EQ(paged[test::UTMALDG], plain.at(test::UTMALDG)) << forward << pages;
      EXPECT_EQ(paged[test::HGMMA], plain.at(test::HGMMA)) << forward << pages;
    }
  }
}

TEST_F(PagesKernels, Compile) {
  for (const char* arch : {"sm_80", "sm_90a"})
    for (const char* line : {"backward bf16 b2 h4:2 q65:300 d72 pages=16", "backward f64 b2 h2 q9:100 d32 pages=32 cu=i64",
                             "backward f32 b2 h2 q9:100 d30 pages=32 layout=dim_first"})
      for (jit::KernelSource source : kernels_of(problem_of(line), arch, "")) {
        if (source.stem.find("page") == std::string::npos && source.stem.rfind("dkdv", 0) != 0) continue;
        source.arch = arch;
        const auto image = jit::compile(source);
        EXPECT_GT(image->bytes.size(), 1000u) << arch << " " << line << " " << source.stem;
        const bool moves_pages = source.stem.find("page") != std::string::npos;
        EXPECT_TRUE(!moves_pages || image->facts.spill_bytes == 0) << arch << " " << source.stem;
      }
}

}  // namespace
}  // namespace foveal::cuda
