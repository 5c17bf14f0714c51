#include "cpu/dispatch.h"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <cpuid.h>

#include "cpu/simd/amx.h"
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#include "cpu/targets.h"

namespace foveal::cpu {
namespace {

// What is missing for a target; empty: nothing.
#if defined(__x86_64__)
/// Clang's __builtin_cpu_supports lacks F16C. AVX2 support implies that the system saves its registers.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/// __builtin_cpu_supports also checks operating system support (XCR0).
std::string missing_for_avx2() {
  if (!__builtin_cpu_supports("avx2")) return "avx2";
  if (!__builtin_cpu_supports("fma")) return "fma";
  if (!has_f16c()) return "f16c";
  return {};
}

std::string missing_for_avx512() {
  if (std::string missing = missing_for_avx2(); !missing.empty()) return missing;
  if (!__builtin_cpu_supports("avx512f")) return "avx512f";
  if (!__builtin_cpu_supports("avx512bw")) return "avx512bw";
  if (!__builtin_cpu_supports("avx512dq")) return "avx512dq";
  if (!__builtin_cpu_supports("avx512vl")) return "avx512vl";
  return {};
}

std::string missing_for_avx512bf16() {
  if (std::string missing = missing_for_avx512(); !missing.empty()) return missing;
  if (!__builtin_cpu_supports("avx512bf16")) return "avx512bf16";
  return {};
}

std::string missing_for_amx() {
  if (std::string missing = missing_for_avx512bf16(); !missing.empty()) return missing;
  if (!amx_bf16_available()) return "amx-bf16, or the system does not allow its use";
  return {};
}
#elif defined(__aarch64__)
std::string missing_for_neonbf16() {
#if defined(__linux__)
  constexpr unsigned long hwcap2_bf16 = 1ul << 14;  // older headers lack the name
  if (getauxval(AT_HWCAP2) & hwcap2_bf16) return {};
#endif
  return "bf16";
}

std::string missing_for_neonfhm() {
#if defined(__linux__)
  constexpr unsigned long hwcap_asimdfhm = 1ul << 23;
  if (getauxval(AT_HWCAP) & hwcap_asimdfhm) return {};
#endif
  return "asimdfhm";
}
#endif

/// Best time of the product of one block: 64 lanes, 64 dims.
[[maybe_unused]] double block_seconds(const BlockOps<float>& ops) {
  constexpr int dim = 64, max_cells = 256 * 64;
  alignas(64) static float panel[max_cells], tile[max_cells], keys[max_cells];
  const Operand operand{keys, dim, keys, dim};
  double best = 1;
  for (int i = 0; i < 8; ++i) {
    const auto start = std::chrono::steady_clock::now();
    ops.dot(operand, panel, {0, 64}, 64, dim, tile);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

Target make_target(const char* name, const std::string& missing, const char* has, const BlockOps<float>* f32, const BlockOps<double>* f64) {
  Target target{.name = name, .available = missing.empty(), .detail = missing.empty() ? has : "CPU lacks " + missing};
  target.f32 = f32, target.f64 = f64;
  return target;
}

}  // namespace

const std::vector<Target>& all_targets() {
  static const auto& targets = *new std::vector<Target>([] {  // never destroyed: destructors of static objects may make calls
    std::vector<Target> list;
#if defined(__x86_64__)
    list.push_back(
        make_target("amx", missing_for_amx(), "AMX-bf16 for bf16, AVX-512 for the rest", &targets::avx512_f32, &targets::avx512_f64));
    list.back().bf16 = &targets::amx_bf16, list.back().decode = &targets::avx512_decode;
    list.push_back(make_target("avx512bf16", missing_for_avx512bf16(), "VDPBF16PS for bf16, AVX-512 for the rest", &targets::avx512_f32,
                               &targets::avx512_f64));
    list.back().bf16 = &targets::avx512bf16_bf16, list.back().decode = &targets::avx512_decode;
    list.push_back(make_target("avx512", missing_for_avx512(), "AVX-512 F, BW, DQ, VL", &targets::avx512_f32, &targets::avx512_f64));
    list.back().decode = &targets::avx512_decode;
    list.push_back(make_target("avx2", missing_for_avx2(), "AVX2, FMA, F16C", &targets::avx2_f32, &targets::avx2_f64));
    list.back().decode = &targets::avx2_decode;
#elif defined(__aarch64__)
    list.push_back(make_target("neonbf16", missing_for_neonbf16(), "BFMMLA for bf16, Advanced SIMD for the rest", &targets::neon_f32,
                               &targets::neon_f64));
    list.back().bf16 = &targets::neonbf16_bf16;
    list.push_back(
        make_target("neonfhm", missing_for_neonfhm(), "FMLAL for f16, Advanced SIMD for the rest", &targets::neon_f32, &targets::neon_f64));
    list.back().f16 = &targets::neonfhm_f16;
    list.push_back(make_target("neon", {}, "Advanced SIMD", &targets::neon_f32, &targets::neon_f64));
#endif
    list.push_back(make_target("scalar", {}, "any processor", &targets::scalar_f32, &targets::scalar_f64));
    return list;
  }());
  return targets;
}

const BlockOps<float>* float_ops(const Target& target, DType dtype) {
  if (dtype == DType::bf16 && target.bf16) return target.bf16;
  if (dtype == DType::f16 && target.f16) return target.f16;
  return target.f32;
}

template <>
const BlockOps<float>* decode_ops(const Target& target, DType dtype, std::int64_t lanes) {
  if (!target.decode || lanes < 1) return nullptr;
  const DecodeTables& decode = *target.decode;
  const bool by_amx = dtype == DType::bf16 && target.bf16 && target.bf16->packed;  // whose tiles have 16 lanes anyway
  if (lanes > (dtype == DType::f32 ? decode.f32_lanes : by_amx ? 4 : DecodeTables::most_lanes)) return nullptr;
  return dtype == DType::bf16 ? &decode.bf16 : dtype == DType::f16 ? &decode.f16 : &decode.f32;
}
template <>
const BlockOps<double>* decode_ops(const Target& target, DType, std::int64_t lanes) {
  return target.decode && lanes >= 1 && lanes <= DecodeTables::most_lanes ? &target.decode->f64 : nullptr;
}

bool worthwhile(const Target& target, DType dtype) {
  if (!target.bf16 && !target.f16) return true;
  if (dtype == DType::f64 || float_ops(target, dtype) == target.f32) return false;
#if defined(__x86_64__)
  if (target.bf16 == &targets::avx512bf16_bf16) {
    static const bool faster = block_seconds(targets::avx512bf16_bf16) < 0.8 * block_seconds(targets::avx512_f32);
    return faster;
  }
#endif
  return true;
}

}  // namespace foveal::cpu
