#pragma once
// Plain data that crosses between Tape (normal code) and the tape kernels of each target (wide instruction flags, no std templates):
// the frame of a tile, the bound parameters, and the code itself.
#include <cstddef>
#include <cstdint>

#include "foveal/tensor.h"
#include "score/varies.h"

namespace foveal::cpu {

/// A tile of S^T. Lanes from `lanes` to padded() are padding: their head and q_idx must be those of some valid lane.
struct TileFrame {
  static constexpr int lane_multiple = 16;

  int keys = 0;   ///< rows
  int lanes = 0;  ///< valid lanes
  int ld = 0;     ///< elements from one row to the next, at least padded(), a multiple of 16; rows are aligned to 64 bytes
  std::int32_t batch = 0;
  std::int32_t seqlen_q = 0, seqlen_kv = 0;  ///< of this sequence: the symbols
  std::int32_t kv_idx = 0;                   ///< global position of row 0; row r is kv_idx + r
  const std::int32_t* head = nullptr;        ///< query head of each lane
  const std::int32_t* q_idx = nullptr;       ///< global position of each lane

  int padded() const { return (lanes + lane_multiple - 1) / lane_multiple * lane_multiple; }
};

/// A bound parameter; its strides are in the program.
struct TapeParam {
  const void* data;
  DType dtype;
};
struct TapeData {
  const TapeParam* params = nullptr;
  bool wide = false;  ///< some integers of this run may overflow 32 bits
};

/// Accumulators of one partition: contiguous in the parameter's shape; double or float; null for parameters without a gradient.
struct TapeGrads {
  struct Sink {
    void* data;
    bool wide;
  };
  static constexpr int max_params = 32;
  Sink params[max_params];
};

// ---- the code ----

// X(op, result): a step and the type of its result: reals, words of 32 bits (integers; booleans as all ones or all zeros), or integers of
// 64 bits. An operation of the score language becomes the step of its name, with the suffix _r for real operands, _i for integers, _l for
// those that may overflow 32 bits, _b for booleans, or without one where a single type is possible.
// clang-format off
#define FOVEAL_TAPE_OPS(X) \
  /* sources: constants are in the program */ \
  X(constant_r, real) X(constant_i, word) X(constant_l, word64) \
  X(batch, word) X(head, word) X(seqlen_q, word) X(seqlen_kv, word) X(kv_idx, word) X(distance, word) /* kv_idx - q_idx */ \
  /* arithmetic */ \
  X(add_r, real) X(sub_r, real) X(mul_r, real) X(div_r, real) X(neg_r, real) X(abs_r, real) X(min_r, real) X(max_r, real) \
  X(floor_div_r, real) X(mod_r, real) \
  X(mul_add, real) X(mul_sub, real) X(sub_mul, real) /* a * b + c, a * b - c, c - a * b */ \
  X(add_i, word) X(sub_i, word) X(mul_i, word) X(neg_i, word) X(abs_i, word) X(min_i, word) X(max_i, word) X(floor_div_i, word) \
  X(mod_i, word) X(bit_and_i, word) X(bit_or_i, word) X(bit_xor_i, word) X(shift_left_i, word) X(shift_right_i, word) \
  X(add_l, word64) X(sub_l, word64) X(mul_l, word64) X(neg_l, word64) X(abs_l, word64) X(min_l, word64) X(max_l, word64) \
  X(floor_div_l, word64) X(mod_l, word64) X(bit_and_l, word64) X(bit_or_l, word64) X(bit_xor_l, word64) X(shift_left_l, word64) \
  X(shift_right_l, word64) \
  /* functions */ \
  X(exp, real) X(exp2, real) X(log, real) X(log2, real) X(sqrt, real) X(rsqrt, real) X(tanh, real) X(sigmoid, real) X(sin, real) \
  X(cos, real) X(tan, real) X(erf, real) X(floor, real) X(pow, real) \
  /* comparison, logic, choice, conversion */ \
  X(eq_r, word) X(ne_r, word) X(lt_r, word) X(le_r, word) X(eq_i, word) X(ne_i, word) X(lt_i, word) X(le_i, word) \
  X(eq_l, word) X(ne_l, word) \
  X(lt_l, word) X(le_l, word) \
  X(logical_and_b, word) X(logical_or_b, word) X(logical_not_b, word) X(logical_xor_b, word) \
  X(select_r, real) X(select_i, word) X(select_l, word64) /* a ? b : c */ \
  X(to_real_i, real) X(to_real_b, real) X(to_integer_r, word) X(to_integer_b, word) X(to_boolean_r, word) X(to_boolean_i, word) \
  X(to_real_l, real) X(to_boolean_l, word) X(to_int32_l, word64) X(to_integer64_r, word64) \
  X(to_float32, real) X(to_bfloat16, real) X(to_float16, real) \
  X(lengthen, word64) X(shorten, word) /* to 64 bits; to 32 bits, saturating */ \
  X(round, real) /* wide to the real of the tile */ \
  /* memory */ \
  X(copy_r, real) X(copy_i, word) X(read_r, real) X(read_i, word) X(read_l, word64) X(read_b, word) \
  X(broadcast, real)   /* a key value, repeated along the lanes: out[row][0..15] = a[row] */ \
  X(guarded_mul, real) /* a == 0 ? 0 : a * b */ \
  /* reductions of the tile a (after zero_r), and accumulation into a parameter gradient */ \
  X(zero_r, real) X(sum_keys, real) X(sum_lanes, real) X(sum_diagonals, real) X(sum_all, real) X(accumulate, real)
// clang-format on

enum class TapeOp : std::uint8_t {
#define FOVEAL_X(op, result) op,
  FOVEAL_TAPE_OPS(FOVEAL_X)
#undef FOVEAL_X
};

/// How a value varies over a tile, whose lanes are rows of the score matrix and whose keys are columns. Values that do not vary
/// by pair have arrays of their own; element (row, lane) of a diagonal value is number lane - row + keys - 1 of its array, so
/// that a row of the tile is a contiguous piece of it.
using scoring::Varies;

/// Where an operand is stored. A strip is a few rows of the tile, so few that all values of a program over it fit in L1.
enum class Space : std::uint8_t {
  none,
  constant,  ///< 16 copies of a number, in the program
  uniform,   ///< 16 copies of one value
  lane,
  key,
  key_broadcast,  ///< a key value over the rows of the strip, 16 copies each
  diagonal,
  strip,
  lane_q,
  lane_head,  ///< arrays of the frame
  input,      ///< the caller's tile: dots
  output,     ///< the caller's tile: scores, or ds (which is read, too)
};

/// The spaces from uniform to strip consist of slots in scratch memory.
constexpr int slot_spaces = static_cast<int>(Space::strip) - static_cast<int>(Space::uniform) + 1;
constexpr int slot_space(Space space) { return static_cast<int>(space) - static_cast<int>(Space::uniform); }

struct TapeOperand {
  Space space = Space::none;
  std::int32_t slot = 0;
};

/// The address of a read, or of the accumulator of a gradient: the sum of clamped indices times strides.
struct TapePlace {
  struct Dim {
    TapeOperand index;
    std::int32_t size;
    std::int64_t stride;
  };
  int param = 0;
  int rank = 0;
  bool narrow = true;  ///< the offsets of all non-uniform dimensions together fit in 31 bits
  Dim dims[TensorView::max_rank];
};

struct TapeStep {
  TapeOp op{};
  Varies rank{};           ///< of the result; of the value that accumulate adds
  bool wide = false;       ///< reals are double even if the tile holds floats
  std::int32_t place = 0;  ///< read_*, accumulate
  TapeOperand out, a, b, c;
  int integer_bytes = 0;  ///< broadcast: of integers
};

constexpr int tape_constant_bytes = 128, tape_constant_distance = 192;

/// Steps [0, strip_begin) run once per tile, [strip_begin, strip_end) once per strip, the rest once per tile afterwards.
struct TapeProgram {
  const TapeStep* steps = nullptr;
  const TapePlace* places = nullptr;
  const void* constants = nullptr;  ///< tape_constant_distance bytes apart
  int strip_element = 4;            ///< bytes of the widest value of a strip
  int strip_begin = 0, strip_end = 0, count = 0;
  int slots[slot_spaces] = {};  ///< of each space, see slot_space()
};

/// One run of a program over `lanes` lanes of a tile, starting at `first_lane`.
struct TapeCall {
  const TapeProgram* program;
  const TileFrame* frame;
  const TapeData* data;
  const TapeGrads* grads;  ///< null: accumulate does nothing
  int first_lane;
  int lanes;        ///< a multiple of 16
  int valid_lanes;  ///< of them
  const void* input;
  void* output;
  void* lane_max;  ///< null, or one per lane of the frame
  char* scratch;
};

constexpr int tape_strip_elements = 1024;

/// Rows of a strip.
constexpr int tape_strip_rows(int lanes) { return lanes >= tape_strip_elements ? 1 : tape_strip_elements / lanes; }

/// Bytes of one slot in each space, for the kernels and for the size of scratch. Only strips need to be small.
struct TapeSlots {
  std::size_t bytes[slot_spaces];
  constexpr std::size_t operator[](Space space) const { return bytes[slot_space(space)]; }
};
constexpr TapeSlots tape_slots(int keys, int lanes, int strip_element) {
  const auto doubles = [](int n) { return static_cast<std::size_t>(n) * 8; };
  const int rows = tape_strip_rows(lanes), padded_keys = (keys + 15) / 16 * 16;
  // Diagonal arrays have room for vectors that overhang at the end.
  return {{doubles(16), doubles(lanes), doubles(padded_keys), doubles(rows * 16), doubles(padded_keys + lanes + 32),
           static_cast<std::size_t>(rows) * lanes * strip_element}};
}

/// Multiplies tiles by keep / (1 - p), keep from base::dropout_bits at global positions.
struct TileDropout {
  std::uint64_t seed, offset;
  std::uint32_t threshold;  ///< base::dropout_threshold(p)
  double scale;             ///< 1 / (1 - p)
  std::int32_t heads_q;
};

/// The tape kernels of a target.
struct TapeKernels {
  void (*run_f32)(const TapeCall& call);
  void (*run_f64)(const TapeCall& call);
  void (*dropout_f32)(const TileFrame& frame, const TileDropout& dropout, float* tile, float* second);
  void (*dropout_f64)(const TileFrame& frame, const TileDropout& dropout, double* tile, double* second);
};
namespace targets {
extern const TapeKernels tape_scalar, tape_avx2, tape_avx512;
}

}  // namespace foveal::cpu
