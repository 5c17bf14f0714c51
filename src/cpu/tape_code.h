#pragma once
// Plain data that crosses between Tape (normal code) and the tape kernels of each target (wide instruction flags, no std templates):
// the frame of a tile, the bound parameters, and the code itself.
#include <cstddef>
#include <cstdint>

#include "foveal/tensor.h"

namespace foveal::cpu {

/// Where a tile of S^T lies. Lanes from `lanes` to padded() are padding: their head and q_idx must hold values that are valid somewhere.
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

/// A bound parameter; its strides are in the code.
struct TapeParam {
  const void* data;
  DType dtype;
};
struct TapeData {
  const TapeParam* params = nullptr;
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

// X(op): what one step does. Suffix _r reals, _i integers (32 bit), _b booleans (32 bit, all ones or all zeros).
// clang-format off
#define FOVEAL_TAPE_OPS(X) \
  /* values that are there: constants lie in the program */ \
  X(constant_r) X(constant_i) \
  X(batch) X(head) X(seqlen_q) X(seqlen_kv) X(kv_idx) X(distance) /* kv_idx - q_idx */ \
  /* arithmetic */ \
  X(add_r) X(sub_r) X(mul_r) X(div_r) X(neg_r) X(abs_r) X(min_r) X(max_r) X(floor_div_r) X(mod_r) \
  X(mul_add) X(mul_sub) X(sub_mul) /* a * b + c, a * b - c, c - a * b */ \
  X(add_i) X(sub_i) X(mul_i) X(neg_i) X(abs_i) X(min_i) X(max_i) X(floor_div_i) X(mod_i) \
  /* functions */ \
  X(exp) X(exp2) X(log) X(log2) X(sqrt) X(rsqrt) X(tanh) X(sigmoid) X(sin) X(cos) X(tan) X(erf) X(floor) X(pow) \
  /* comparison, logic, choice, conversion */ \
  X(eq_r) X(ne_r) X(lt_r) X(le_r) X(eq_i) X(ne_i) X(lt_i) X(le_i) \
  X(and_b) X(or_b) X(not_b) X(xor_b) \
  X(select_r) X(select_i) /* a ? b : c */ \
  X(real_of_i) X(real_of_b) X(integer_of_r) X(integer_of_b) X(boolean_of_r) X(boolean_of_i) \
  X(round) /* wide to the real of the tile */ \
  /* memory */ \
  X(copy_r) X(copy_i) X(read_r) X(read_i) X(read_b) \
  X(spread)      /* a key value, repeated along the lanes: out[row][0..15] = a[row] */ \
  X(guarded_mul) /* a == 0 ? 0 : a * b */ \
  /* sums of the tile a (after zero_r) and their way into the accumulators of a parameter */ \
  X(zero_r) X(sum_keys) X(sum_lanes) X(sum_diagonals) X(sum_all) X(accumulate)
// clang-format on

enum class TapeOp : std::uint8_t {
#define FOVEAL_X(op) op,
  FOVEAL_TAPE_OPS(FOVEAL_X)
#undef FOVEAL_X
};

/// How a value varies over a tile. Values of lower rank live in arrays of their own; element (row, lane) of a diagonal value is number
/// lane - row + keys - 1 of its array, so that a row is a contiguous piece of it.
enum class Rank : std::uint8_t { uniform, lane, key, diagonal, full };

/// Where an operand lives. A strip is a few rows of the tile, small enough that all values of a program over it stay in the L1 cache.
enum class Space : std::uint8_t {
  none,
  constant,  ///< 16 copies of a number, in the program
  uniform,   ///< 16 copies of one value
  lane,
  key,
  key_spread,  ///< a key value over the rows of the strip, 16 copies each
  diagonal,
  strip,
  lane_q,
  lane_head,  ///< arrays of the frame
  input,      ///< the caller's tile: dots
  output,     ///< the caller's tile: scores, or ds (which is read, too)
};

struct TapeOperand {
  Space space = Space::none;
  std::int32_t slot = 0;
};

/// The address of a read, or of what a gradient is added to: the sum of clamped indices times strides.
struct TapePlace {
  struct Dim {
    TapeOperand index;
    std::int32_t size;
    std::int64_t stride;
  };
  int param = 0;
  int rank = 0;
  bool narrow = true;  ///< the offsets of all dimensions that are not uniform fit in 31 bits together
  Dim dims[TensorView::max_rank];
};

struct TapeStep {
  TapeOp op{};
  Rank rank{};             ///< of the result; of the value that accumulate adds
  bool wide = false;       ///< reals are double whatever the tile holds
  std::int32_t place = 0;  ///< read_*, accumulate
  TapeOperand out, a, b, c;
  bool integers = false;  ///< spread: of 32-bit values
};

constexpr int tape_constant_bytes = 128, tape_constant_distance = 192;

/// Steps [0, strip_begin) run once per tile, [strip_begin, strip_end) once per strip, the rest once per tile afterwards.
struct TapeProgram {
  const TapeStep* steps = nullptr;
  const TapePlace* places = nullptr;
  const void* constants = nullptr;  ///< tape_constant_distance bytes apart
  int strip_element = 4;            ///< bytes of the widest value of a strip
  int strip_begin = 0, strip_end = 0, count = 0;
  int uniforms = 0, lanes = 0, keys = 0, key_spreads = 0, diagonals = 0, strips = 0;  ///< slots in each space
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

/// Bytes of one slot in each space; used by the kernels and by whoever provides scratch. Only strips are worth keeping small.
struct TapeSlots {
  std::size_t uniform, lane, key, key_spread, diagonal, strip;
};
constexpr TapeSlots tape_slots(int keys, int lanes, int strip_element) {
  const auto doubles = [](int n) { return static_cast<std::size_t>(n) * 8; };
  const int rows = tape_strip_rows(lanes), padded_keys = (keys + 15) / 16 * 16;
  // A diagonal array has room for the vectors that stick out at its end.
  return {doubles(16),
          doubles(lanes),
          doubles(padded_keys),
          doubles(rows * 16),
          doubles(padded_keys + lanes + 32),
          static_cast<std::size_t>(rows) * lanes * strip_element};
}

/// Multiplies tiles by keep / (1 - p), keep from base::dropout_bits at global positions.
struct TileDropout {
  std::uint64_t seed, offset;
  std::uint32_t threshold;  ///< base::dropout_threshold(p)
  double scale;             ///< 1 / (1 - p)
  std::int32_t heads_q;
};

/// What a target supplies.
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
