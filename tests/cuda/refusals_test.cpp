// What no kernel can do is refused before any work, with the reason; what the limits allow is planned.
#include <gtest/gtest.h>

#include "cuda/kernels_of.h"
#include "foveal/error.h"
#include "problems.h"

namespace foveal::cuda {
namespace {

using test::problem_of;

/// The reasons, or "" where there are kernels.
std::string refusal_of(const std::string& line, const std::string& arch) {
  try {
    (void)kernels_of(problem_of(line), arch, "");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported) << line << ": " << error.what();
    return error.what();
  }
  return "";
}

void expect_refused(const std::string& line, const std::string& arch, const std::string& why) {
  EXPECT_NE(refusal_of(line, arch).find(why), std::string::npos) << arch << ": " << line << ": " << refusal_of(line, arch);
}

TEST(Refusals, APassOfAGradientWhoseTilesDoNotFit) {
  const std::string rel = R"( score="score + rel[clamp(kv_idx - q_idx, -8, 8) + 8]" param="rel: real[17])";
  const std::string why = "the gradient of rel takes a pass of its own, whose tiles of head_dim ";
  for (const auto& [arch, dim] : {std::pair{"sm_80", "d320"}, {"sm_90", "d448"}, {"sm_100", "d448"}}) {
    const std::string line = std::string("backward f64 b1 h1 q64 ") + dim;
    expect_refused(line + rel + " grad\"", arch, why);
    EXPECT_EQ(refusal_of(line + rel + "\"", arch), "");
    EXPECT_EQ(refusal_of(line + " score=\"score + rel[batch]\" param=\"rel: real[1] grad\"", arch), "");
  }
}

TEST(Refusals, NoProblemThatFitsInPart) {
  // Every kind of gradient at the largest head dims that each element type has: kernels or a reason, never an exception of another kind.
  for (const char* dtype : {"f64", "f32", "bf16"}) {
    for (const char* strategy : {"", " strategy=split", " strategy=two_scan"}) {
      for (int dim = 192; dim <= 512; dim += 64) {
        for (const char* rest :
             {"score=\"score + t[clamp(kv_idx - q_idx, -8, 8) + 8]\" param=\"t: real[17] grad\"",
              "score=\"score + t[q_idx, kv_idx]\" param=\"t: real[64, 64] grad\"", "score=\"score + t[head]\" param=\"t: real[2] grad\""}) {
          const std::string line = std::string("backward ") + dtype + " b2 h2 q64 d" + std::to_string(dim) + strategy + " " + rest;
          for (const char* arch : {"sm_80", "sm_86", "sm_90", "sm_120"}) (void)refusal_of(line, arch);
        }
      }
    }
  }
}

TEST(Refusals, TablesOfMoreTilesThanCanBeCounted) {
  std::string lengths = "lengths=1048576";
  for (int i = 0; i < 67; ++i) lengths += ",16";
  const std::string mask = R"x( mask="ids[q_idx] == ids[kv_idx]" param="ids: integer[1048576] segments(9)")x";
  const std::string why = "the mask reads data, and the table of its tiles would have";
  for (const char* pass : {"forward bf16 h2 d64 ", "backward bf16 h2 d64 ", "forward f32 h2 d64 ", "backward f32 h2 d64 "}) {
    for (const char* arch : {"sm_80", "sm_90"}) {
      expect_refused(pass + lengths + mask, arch, why);
      EXPECT_EQ(refusal_of(pass + std::string("lengths=16384,16") + mask, arch), "");
      EXPECT_EQ(refusal_of(pass + lengths + " mask=\"kv_idx <= q_idx\"", arch), "");
    }
  }
}

TEST(Refusals, DimensionsOfParametersBeyond32Bits) {
  for (const char* pass : {"forward bf16", "backward bf16", "forward f32", "backward f32"}) {
    for (const char* arch : {"sm_80", "sm_90"}) {
      const auto line = [&](const char* size) {
        return std::string(pass) + " b1 h2 q64 d64 score=\"score + t[ids[q_idx]]\" param=\"t: real[" + size +
               "] f16\" param=\"ids: integer[64]\"";
      };
      expect_refused(line("2147483648"), arch, "parameter t: a dimension of 2147483648 exceeds 2^31 - 1");
      EXPECT_EQ(refusal_of(line("2147483647"), arch), "");
    }
  }
}

}  // namespace
}  // namespace foveal::cuda
