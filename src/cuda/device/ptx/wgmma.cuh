#pragma once
// Warpgroup matrix multiply: D[64 x n] += A[64 x 16] B[16 x n], 16-bit operands, fp32 accumulators.
//
// Register i of D in thread tid (w = tid / 32 % 4, g = tid % 32 / 4, t = tid % 4):
//   row 16 w + g + 8 ((i >> 1) & 1),  column 8 (i >> 2) + 2 t + (i & 1).
// Registers of A (two values each): rows g, g + 8, g, g + 8 and k 2t, 2t, 2t + 8, 2t + 8 (+1): packed neighbours of an accumulator.
#include "element.cuh"

namespace foveal::device {

enum class Major { k, mn };  ///< which index of an operand is contiguous in shared memory

FOVEAL_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FOVEAL_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending>
FOVEAL_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// Keeps the compiler from moving arithmetic on accumulators across issue and wait.
template <int count>
FOVEAL_DEVICE void wgmma_pin(float (&registers)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

/// wgmma matrix descriptor, 128-byte swizzle: [row][64 columns], 128 bytes a row, chunks of 64 columns.
/// Only the low word (address, leading offset) changes between instructions. `leading_bytes`: stride between chunks when MN-major.
struct MatrixDescriptor {
  u32 low;
  static constexpr u32 kHigh = (1024u >> 4) | (1u << 30);  // stride of 8 rows: 1024 bytes; swizzle mode 1
  FOVEAL_DEVICE static MatrixDescriptor at(u32 address, u32 leading_bytes = 16) {
    return {((address & 0x3ffffu) >> 4) | ((leading_bytes >> 4) << 16)};
  }
  FOVEAL_DEVICE MatrixDescriptor offset(u32 bytes) const { return {low + (bytes >> 4)}; }
  FOVEAL_DEVICE u64 bits() const { return (static_cast<u64>(kHigh) << 32) | low; }
};

// Register lists of one instruction: n / 16 groups of eight accumulators.
// The formatter would break up the instruction strings.
// clang-format off
#define FOVEAL_R16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define FOVEAL_R32 FOVEAL_R16 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define FOVEAL_R48 FOVEAL_R32 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define FOVEAL_R64 FOVEAL_R48 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define FOVEAL_R80 FOVEAL_R64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define FOVEAL_R96 FOVEAL_R80 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define FOVEAL_R112 FOVEAL_R96 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define FOVEAL_R128 FOVEAL_R112 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define FOVEAL_R144 FOVEAL_R128 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define FOVEAL_R160 FOVEAL_R144 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define FOVEAL_R176 FOVEAL_R160 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define FOVEAL_R192 FOVEAL_R176 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define FOVEAL_R208 FOVEAL_R192 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define FOVEAL_R224 FOVEAL_R208 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define FOVEAL_R240 FOVEAL_R224 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define FOVEAL_R256 FOVEAL_R240 ",%120,%121,%122,%123,%124,%125,%126,%127"

// NOLINTBEGIN(bugprone-macro-parentheses): numbers, also as parts of names and texts
#define FOVEAL_D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define FOVEAL_D16 FOVEAL_D8(0)
#define FOVEAL_D32 FOVEAL_D16, FOVEAL_D8(8)
#define FOVEAL_D48 FOVEAL_D32, FOVEAL_D8(16)
#define FOVEAL_D64 FOVEAL_D48, FOVEAL_D8(24)
#define FOVEAL_D80 FOVEAL_D64, FOVEAL_D8(32)
#define FOVEAL_D96 FOVEAL_D80, FOVEAL_D8(40)
#define FOVEAL_D112 FOVEAL_D96, FOVEAL_D8(48)
#define FOVEAL_D128 FOVEAL_D112, FOVEAL_D8(56)
#define FOVEAL_D144 FOVEAL_D128, FOVEAL_D8(64)
#define FOVEAL_D160 FOVEAL_D144, FOVEAL_D8(72)
#define FOVEAL_D176 FOVEAL_D160, FOVEAL_D8(80)
#define FOVEAL_D192 FOVEAL_D176, FOVEAL_D8(88)
#define FOVEAL_D208 FOVEAL_D192, FOVEAL_D8(96)
#define FOVEAL_D224 FOVEAL_D208, FOVEAL_D8(104)
#define FOVEAL_D240 FOVEAL_D224, FOVEAL_D8(112)
#define FOVEAL_D256 FOVEAL_D240, FOVEAL_D8(120)

template <int n, bool bf16>
struct Wgmma;

// p0..p6: operand numbers after the accumulators.
#define FOVEAL_WGMMA_TYPED(n, type, is_bf16, p0, p1, p2, p3, p4, p5, p6)                                                             \
  template <>                                                                                                                          \
  struct Wgmma<n, is_bf16> {                                                                                                           \
    template <Major a_major, Major b_major>                                                                                            \
    FOVEAL_DEVICE static void run(float (&d)[n / 2], MatrixDescriptor a, MatrixDescriptor b, bool accumulate) {                        \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" #p2 ", 0;\n"                                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" FOVEAL_R##n "}, %" #p0 ", %" #p1               \
                   ", p, 1, 1, %" #p3 ", %" #p4 ";}"                                                                                   \
                   : FOVEAL_D##n                                                                                                       \
                   : "l"(a.bits()), "l"(b.bits()), "r"(static_cast<int>(accumulate)), "n"(a_major == Major::mn), "n"(b_major == Major::mn)); \
    }                                                                                                                                  \
    template <Major b_major, class Descriptor>                                                                                         \
    FOVEAL_DEVICE static void run(float (&d)[n / 2], u32 a0, u32 a1, u32 a2, u32 a3, Descriptor b, bool accumulate) {                  \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" #p5 ", 0;\n"                                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" FOVEAL_R##n "}, {%" #p0 ", %" #p1 ", %" #p2    \
                   ", %" #p3 "}, %" #p4 ", p, 1, 1, %" #p6 ";}"                                                                        \
                   : FOVEAL_D##n                                                                                                       \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b.bits()), "r"(static_cast<int>(accumulate)), "n"(b_major == Major::mn));  \
    }                                                                                                                                  \
  };
#define FOVEAL_WGMMA(n, ...)                         \
  FOVEAL_WGMMA_TYPED(n, "bf16", true, __VA_ARGS__)   \
  FOVEAL_WGMMA_TYPED(n, "f16", false, __VA_ARGS__)

// NOLINTEND(bugprone-macro-parentheses)
// clang-format on
FOVEAL_WGMMA(16, 8, 9, 10, 11, 12, 13, 14)
FOVEAL_WGMMA(32, 16, 17, 18, 19, 20, 21, 22)
FOVEAL_WGMMA(48, 24, 25, 26, 27, 28, 29, 30)
FOVEAL_WGMMA(64, 32, 33, 34, 35, 36, 37, 38)
FOVEAL_WGMMA(80, 40, 41, 42, 43, 44, 45, 46)
FOVEAL_WGMMA(96, 48, 49, 50, 51, 52, 53, 54)
FOVEAL_WGMMA(112, 56, 57, 58, 59, 60, 61, 62)
FOVEAL_WGMMA(128, 64, 65, 66, 67, 68, 69, 70)
FOVEAL_WGMMA(144, 72, 73, 74, 75, 76, 77, 78)
FOVEAL_WGMMA(160, 80, 81, 82, 83, 84, 85, 86)
FOVEAL_WGMMA(176, 88, 89, 90, 91, 92, 93, 94)
FOVEAL_WGMMA(192, 96, 97, 98, 99, 100, 101, 102)
FOVEAL_WGMMA(208, 104, 105, 106, 107, 108, 109, 110)
FOVEAL_WGMMA(224, 112, 113, 114, 115, 116, 117, 118)
FOVEAL_WGMMA(240, 120, 121, 122, 123, 124, 125, 126)
FOVEAL_WGMMA(256, 128, 129, 130, 131, 132, 133, 134)

}  // namespace foveal::device
