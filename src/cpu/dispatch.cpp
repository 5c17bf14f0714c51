#include "cpu/dispatch.h"

#include "cpu/targets.h"

namespace foveal::cpu {
namespace {

/// The first feature of a list that is missing; __builtin_cpu_supports also asks the operating system (XCR0).
std::string missing_for_avx2() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) return "avx2";
  if (!__builtin_cpu_supports("fma")) return "fma";
  if (!__builtin_cpu_supports("f16c")) return "f16c";
  return {};
#else
  return "avx2";
#endif
}

std::string missing_for_avx512() {
  if (std::string missing = missing_for_avx2(); !missing.empty()) return missing;
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512f")) return "avx512f";
  if (!__builtin_cpu_supports("avx512bw")) return "avx512bw";
  if (!__builtin_cpu_supports("avx512dq")) return "avx512dq";
  if (!__builtin_cpu_supports("avx512vl")) return "avx512vl";
#endif
  return {};
}

Target make_target(const char* name, const std::string& missing, const char* has, const BlockOps<float>* f32, const BlockOps<double>* f64) {
  Target target{.name = name, .available = missing.empty(), .detail = missing.empty() ? has : "CPU lacks " + missing};
  target.f32 = f32, target.f64 = f64;
  return target;
}

}  // namespace

const std::vector<Target>& all_targets() {
  static const std::vector<Target> targets = [] {
    std::vector<Target> list;
#if defined(__x86_64__)
    list.push_back(make_target("avx512", missing_for_avx512(), "AVX-512 F, BW, DQ, VL", &targets::avx512_f32, &targets::avx512_f64));
    list.push_back(make_target("avx2", missing_for_avx2(), "AVX2, FMA, F16C", &targets::avx2_f32, &targets::avx2_f64));
#endif
    list.push_back(make_target("scalar", {}, "any processor", &targets::scalar_f32, &targets::scalar_f64));
    return list;
  }();
  return targets;
}

const BlockOps<float>* float_ops(const Target& target, DType dtype) {
  return dtype == DType::bf16 && target.bf16 ? target.bf16 : target.f32;
}

}  // namespace foveal::cpu
