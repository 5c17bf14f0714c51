#pragma once
// The tile machine of AMX-bf16: eight registers of 16 rows x 64 bytes, and an instruction that multiplies pairs of bf16.
//
// Everything is inline assembly with a memory clobber: g++ 12's intrinsics tell the compiler neither that a tile load reads memory nor that
// the configuration is 64 bytes long, so it moves stores across them and drops the initialisation. The wrappers need no compiler flag.
//
// The instruction treats denormals as zero, rounds to nearest even whatever MXCSR says, and for each result adds the product of the even
// elements of a pair, then that of the odd ones, each with a rounding (ScalarTiles in tests/cpu is the model).
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace foveal::cpu {

namespace {

/// All eight tiles at their largest.
struct alignas(64) AmxConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr AmxConfig amx_config;

struct AmxTiles {
  static constexpr int kRows = 16;      ///< rows of a tile
  static constexpr int kRowBytes = 64;  ///< bytes of a row: 16 fp32 or 32 bf16

  /// Before and after the tile instructions of a thread: about 100 ns. The configuration does not survive code that has one of its own.
  static void enter() { asm volatile("ldtilecfg %0" ::"m"(amx_config) : "memory"); }
  static void leave() { asm volatile("tilerelease" ::: "memory"); }

  template <int T>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  void load(const void* tile, std::int64_t stride_bytes = kRowBytes) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(tile), "r"(stride_bytes) : "memory");
  }
  template <int T>
  void store(void* tile, std::int64_t stride_bytes = kRowBytes) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(tile), "r"(stride_bytes) : "memory");
  }
  /// C[16][16] fp32 += A[16][16 pairs] * B[16 pairs][16], A and B bf16.
  template <int C, int A, int B>
  void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

/// The processor has the instructions, the system saves the registers, and this process may use them (requested once; later threads inherit
/// the permission).
inline bool amx_bf16_available() {
  static const bool available = [] {
    std::uint32_t a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || !(c & (1u << 27))) return false;  // OSXSAVE
    std::uint32_t low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 0x600e6u) != 0x600e6u) return false;                                                        // AVX-512 and tile state
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & (1u << 22)) || !(d & (1u << 24))) return false;  // amx-bf16, amx-tile
    constexpr long arch_req_xcomp_perm = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, arch_req_xcomp_perm, tile_data) == 0;
  }();
  return available;
}

}  // namespace
}  // namespace foveal::cpu
