// Every kernel of the CPU backend against the exact results, by the tolerance rule: forward, the three backward strategies, on each target
// here.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "check/check.h"
#include "cpu/dispatch.h"

namespace foveal {
namespace {

std::vector<std::string> available_targets() {
  std::vector<std::string> names;
  for (const cpu::Target& target : cpu::all_targets())
    if (target.available) names.push_back(target.name);
  return names;
}

/// The table that a target uses for a type: the middle of the kernel's name.
std::string table_name(const std::string& target_name, DType dtype) {
  for (const cpu::Target& target : cpu::all_targets())
    if (target.name == target_name) return dtype == DType::f64 ? target.f64->name : cpu::float_ops(target, dtype)->name;
  return {};
}

void expect_right(const check::Report& report, const std::string& kernel) {
  EXPECT_EQ(report.kernel, kernel) << report.line << ": " << report.failure;
  EXPECT_TRUE(report.pass) << report.line << "\n  on " << report.kernel << ": " << report.failure;
  for (const check::TensorReport& t : report.tensors)
    if (!t.pass)
      ADD_FAILURE() << t.name << ": error " << t.max_error << " (bound " << t.max_bound << "), rms " << t.rms_error << " (bound "
                    << t.rms_bound << ")";
}

struct Shape {
  const char* name;
  const char* text;  ///< everything but pass, type and target
};

// One line for each thing that can go wrong: tails of lanes, keys and dims, unequal dims, groups, layouts, strides, lengths.
const Shape shapes[] = {
    {"one", "b1 h1 q1:1 d1"},
    {"tails", "b2 h3 q67:131 d33:17"},
    {"blocks", "b1 h2 q128:192 d64"},
    {"wide", "b1 h1 q65:70 d256:130"},
    {"widest", "b1 h1 q20:33 d512"},
    {"decode", "b2 h8:2 q1:150 d64"},
    {"few_queries", "b1 h6:2 q11:97 d48:80"},
    {"one_kv_head", "b1 h5:1 q70:64 d32"},
    {"one_key", "b1 h2 q90:1 d40"},
    {"bhsd", "b2 h2 q66:50 d24 layout=bhsd"},
    {"sbhd", "b2 h2 q66:50 d24 layout=sbhd"},
    {"packed_qkv", "b2 h3 q70:70 d32 layout=packed_qkv"},
    {"padded", "b2 h2 q66:50 d20 layout=padded"},
    {"dim_first", "b2 h2 q66:50 d24 layout=dim_first"},
    {"varlen", "b3 h4:2 q90:120 d32 lengths=90:70,1:120,37:5"},
    {"varlen_empty", "b3 h2 q40:60 d16 lengths=40:0,0:60,33:44"},
    {"scale", "b1 h2 q40:90 d16 scale=0.7"},
    {"negative_scale", "b1 h2 q40:90 d16 scale=-0.4"},
    {"zero_scale", "b1 h2 q40:90 d16 scale=0"},
    {"adversarial", "b1 h2 q100:200 d64 inputs=adversarial"},
};

std::string shape_name(const testing::TestParamInfo<Shape>& info) { return info.param.name; }

class CpuKernels : public testing::TestWithParam<Shape> {};

TEST_P(CpuKernels, ForwardIsExact) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const problem::Line line = problem::parse_line(base::join("forward ", to_string(dtype), " ", GetParam().text));
    const check::Checker check(line);
    for (const std::string& target : available_targets())
      expect_right(check({.backend = "cpu", .target = target}), "cpu." + table_name(target, dtype) + ".forward");
  }
}

TEST_P(CpuKernels, BackwardIsExact) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const char* strategy : {"fused", "split", "two_scan"}) {
      const problem::Line line =
          problem::parse_line(base::join("backward ", to_string(dtype), " ", GetParam().text, " dlse strategy=", strategy));
      const check::Checker check(line);
      for (const std::string& target : available_targets())
        expect_right(check({.backend = "cpu", .target = target}), "cpu." + table_name(target, dtype) + ".backward." + strategy);
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuKernels, testing::ValuesIn(shapes), shape_name);

}  // namespace
}  // namespace foveal
