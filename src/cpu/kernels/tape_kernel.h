// Runs the programs of tape_code.h on tiles.
#pragma once
#include "cpu/kernels/tape_integers.h"
#include "cpu/kernels/tape_math.h"
#include "cpu/kernels/tape_rounding.h"
#include "cpu/kernels/tape_sums.h"

namespace foveal::cpu {
namespace {

/// The vectors of a step on reals of type R.
template <class R>
struct TapeTypes {
  static constexpr int lanes = kVectorBytes / sizeof(R);
  using V = Vec<R, lanes>;
  using I = Vec<std::int32_t, lanes>;
  using Mask = Vec<typename IntegerOf<sizeof(R)>::type, lanes>;  ///< as wide as V

  static Mask wide(I mask) { return __builtin_convertvector(mask, Mask); }
  static I narrow(Mask mask) { return __builtin_convertvector(mask, I); }

  static R rest_of(R a, R b) { return sizeof(R) == 4 ? static_cast<R>(__builtin_fmodf(a, b)) : static_cast<R>(__builtin_fmod(a, b)); }

  /// Python's remainder: the sign of the divisor, exact.
  static V remainder(V a, V b) {
    for (int i = 0; i < lanes; ++i) {
      const R rest = rest_of(a[i], b[i]);
      a[i] = rest != 0 && (rest < 0) != (b[i] < 0) ? rest + b[i] : rest;
    }
    return a;
  }

  /// Python's quotient: a / b may be rounded up to an integer that it is below.
  static V floor_quotient(V a, V b) {
    V rest{};
    for (int i = 0; i < lanes; ++i) rest[i] = rest_of(a[i], b[i]);
    const V quotient = (a - rest) / b, floor = Math<R>::floor(quotient);
    const V whole = quotient - floor > R(0.5) ? floor + R(1) : floor;
    const V below = (rest != V{}) & ((rest < V{}) != (b < V{})) ? whole - R(1) : whole;
    return b == V{} ? a / b : below;
  }

  /// Towards zero, saturating, NaN to 0.
  static I truncate(V x) {
    const V number = x == x ? x : V{};
    const V low = number < R(-2147483648.0) ? splat<V>(R(-2147483648.0)) : number;
    const Mask high = low >= R(2147483648.0);
    const I result = __builtin_convertvector(high ? V{} : low, I);
    return narrow(high) ? splat<I>(2147483647) : result;
  }
};

template <class Real>
class TapeRun : TapeSums {
 public:
  explicit TapeRun(const TapeCall& call) : TapeSums(call) {}

  void run() {
    const TapeProgram& program = *call_.program;
    const TapeStep* const strip = program.steps + program.strip_begin;
    const TapeStep* const strip_end = program.steps + program.strip_end;
    for (const TapeStep* step = program.steps; step != strip; ++step) execute_whole(*step);
    if (strip != strip_end) {
      const int strip_rows = tape_strip_rows(call_.lanes);
      columns_ = call_.lanes;
      for (int row0 = 0; row0 < frame_.keys; row0 += strip_rows) {
        rows_ = frame_.keys - row0 < strip_rows ? frame_.keys - row0 : strip_rows;
        move_to_row(row0);
        place(Space::diagonal).first = frame_.keys - 1 - row0;
        place(Space::diagonal).row = -1;
        for (const TapeStep* step = strip; step != strip_end; ++step) execute(*step);
        if (call_.lane_max) raise_lane_max<Real>();
      }
      move_to_row(0);
      place(Space::diagonal).first = 0;
      place(Space::diagonal).row = 0;
    }
    for (const TapeStep* step = strip_end; step != program.steps + program.count; ++step) execute_whole(*step);
  }

 private:
  /// A step outside the strips: its whole array.
  void execute_whole(const TapeStep& step) {
    rows_ = 1;
    switch (step.rank) {
      case Varies::uniform:
        columns_ = 16;
        break;
      case Varies::row:
        columns_ = call_.lanes;
        break;
      case Varies::column:
        columns_ = (frame_.keys + 15) / 16 * 16;
        break;
      case Varies::diagonal:
        columns_ = (frame_.keys + 15) / 16 * 16 + call_.lanes;
        break;
      case Varies::pair:
        return;
    }
    execute(step);
  }

  void execute(const TapeStep& step) {
    if (sizeof(Real) == 4 && step.wide) return execute_as<double>(step);
    return execute_as<Real>(step);
  }

  /// Long: a row for each operation, compiled to one jump table.
  template <class R>
  void execute_as(const TapeStep& step) {
    using T = TapeTypes<R>;
    using V = typename T::V;
    using I = typename T::I;
    using M = Math<R>;
    using H = Vec<Int, kLongs>;  // as many words as a vector has integers of 64 bits
#define FOVEAL_REAL_STEP(op, expression) \
  case TapeOp::op:                       \
    return map<R, R, R, R, T::lanes>(step, [](V a, [[maybe_unused]] V b, [[maybe_unused]] V c) -> V { return expression; })
#define FOVEAL_INTEGER_STEP(op, expression) \
  case TapeOp::op:                          \
    return map<Int, Int, Int, Int, kWords>(step, [](W a, [[maybe_unused]] W b, [[maybe_unused]] W c) -> W { return expression; })
#define FOVEAL_INTEGER64_STEP(op, expression) \
  case TapeOp::op:                            \
    return map<Int64, Int64, Int64, Int64, kLongs>(step, [](L a, [[maybe_unused]] L b, [[maybe_unused]] L c) -> L { return expression; })
#define FOVEAL_INTEGER_STEPS(op, expression)                                                                             \
  case TapeOp::op##_i:                                                                                                   \
    return map<Int, Int, Int, Int, kWords>(step, []<class N>(N a, [[maybe_unused]] N b, N) -> N { return expression; }); \
  case TapeOp::op##_l:                                                                                                   \
    return map<Int64, Int64, Int64, Int64, kLongs>(step, []<class N>(N a, [[maybe_unused]] N b, N) -> N { return expression; })
#define FOVEAL_COMPARISON64_STEP(op, expression) \
  case TapeOp::op:                               \
    return map<Int, Int64, Int64, Int64, kLongs>(step, [](L a, [[maybe_unused]] L b, L) { return __builtin_convertvector(expression, H); })
#define FOVEAL_COMPARISON_STEP(op, expression) \
  case TapeOp::op:                             \
    return map<Int, R, R, R, T::lanes>(step, [](V a, [[maybe_unused]] V b, V) -> I { return T::narrow(expression); })
    switch (step.op) {
      case TapeOp::constant_r:
      case TapeOp::constant_i:
      case TapeOp::constant_l:
        return;
      case TapeOp::batch:
        return fill<Int>(step, frame_.batch);
      case TapeOp::head:
        return fill<Int>(step, frame_.head[call_.first_lane]);
      case TapeOp::seqlen_q:
        return fill<Int>(step, frame_.seqlen_q);
      case TapeOp::seqlen_kv:
        return fill<Int>(step, frame_.seqlen_kv);
      case TapeOp::kv_idx:
        return count(step, frame_.kv_idx, 1);
      case TapeOp::distance:
        return count(step, frame_.kv_idx - frame_.q_idx[call_.first_lane] + frame_.keys - 1, -1);

        FOVEAL_REAL_STEP(add_r, a + b);
        FOVEAL_REAL_STEP(sub_r, a - b);
        FOVEAL_REAL_STEP(mul_r, a * b);
        FOVEAL_REAL_STEP(div_r, a / b);
        FOVEAL_REAL_STEP(neg_r, -a);
        FOVEAL_REAL_STEP(abs_r, bits<V>(bits<typename T::Mask>(a) & ~bits<typename T::Mask>(splat<V>(static_cast<R>(-0.0)))));
        FOVEAL_REAL_STEP(min_r, b != b ? b : smaller(a, b));  // a NaN of either stays
        FOVEAL_REAL_STEP(max_r, b != b ? b : larger(a, b));
        FOVEAL_REAL_STEP(floor_div_r, T::floor_quotient(a, b));
        FOVEAL_REAL_STEP(mod_r, T::remainder(a, b));
        FOVEAL_REAL_STEP(mul_add, a * b + c);
        FOVEAL_REAL_STEP(mul_sub, a * b - c);
        FOVEAL_REAL_STEP(sub_mul, c - a * b);

        FOVEAL_INTEGER_STEPS(add, wrapping_add(a, b));
        FOVEAL_INTEGER_STEPS(sub, wrapping_sub(a, b));
        FOVEAL_INTEGER_STEPS(mul, wrapping_mul(a, b));
        FOVEAL_INTEGER_STEPS(neg, wrapping_sub(N{}, a));
        FOVEAL_INTEGER_STEPS(abs, a < 0 ? wrapping_sub(N{}, a) : a);
        FOVEAL_INTEGER_STEPS(min, b < a ? b : a);
        FOVEAL_INTEGER_STEPS(max, b > a ? b : a);
      case TapeOp::floor_div_i:
        if (const Int divisor = common_divisor(step)) {
          const Division by(divisor);
          return map<Int, Int, Int, Int, kWords>(step, [by](W a, W, W) -> W { return by.quotient(a); });
        }
        return map<Int, Int, Int, Int, kVectorBytes / 8>(step, [](auto a, auto b, auto) { return quotient(a, b); });
      case TapeOp::mod_i:
        if (const Int divisor = common_divisor(step)) {
          const Division by(divisor);
          return map<Int, Int, Int, Int, kWords>(
              step, [by](W a, W, W) -> W { return wrapping_sub(a, wrapping_mul(by.quotient(a), splat<W>(by.divisor))); });
        }
        return map<Int, Int, Int, Int, kVectorBytes / 8>(
            step, [](auto a, auto b, auto) { return b == 0 ? b : wrapping_sub(a, wrapping_mul(quotient(a, b), b)); });

        FOVEAL_INTEGER_STEPS(bit_and, a & b);
        FOVEAL_INTEGER_STEPS(bit_or, a | b);
        FOVEAL_INTEGER_STEPS(bit_xor, a ^ b);
        FOVEAL_INTEGER_STEP(shift_left_i, b > 31 ? W{} : wrapping_shift(a, b < 0 ? W{} : b & 31));
        FOVEAL_INTEGER_STEP(shift_right_i, a >> (b < 0 ? W{} : b > 31 ? splat<W>(31) : b));

        FOVEAL_INTEGER64_STEP(floor_div_l, quotient64(a, b));
        FOVEAL_INTEGER64_STEP(mod_l, b == 0 ? b : wrapping_sub(a, wrapping_mul(quotient64(a, b), b)));
        FOVEAL_INTEGER64_STEP(shift_left_l, wrapping_shift(a, shift_count64(b)));
        FOVEAL_INTEGER64_STEP(shift_right_l, a >> shift_count64(b));

        FOVEAL_REAL_STEP(exp, M::exp(a));
        FOVEAL_REAL_STEP(exp2, M::exp2(a));
        FOVEAL_REAL_STEP(log, M::log(a));
        FOVEAL_REAL_STEP(log2, M::log2(a));
        FOVEAL_REAL_STEP(sqrt, square_root(a));
        FOVEAL_REAL_STEP(rsqrt, R{1} / square_root(a));
        FOVEAL_REAL_STEP(tanh, M::tanh(a));
        FOVEAL_REAL_STEP(sigmoid, M::sigmoid(a));
        FOVEAL_REAL_STEP(sin, M::sin(a));
        FOVEAL_REAL_STEP(cos, M::cos(a));
        FOVEAL_REAL_STEP(tan, M::tan(a));
        FOVEAL_REAL_STEP(erf, M::erf(a));
        FOVEAL_REAL_STEP(floor, M::floor(a));
        FOVEAL_REAL_STEP(pow, M::pow(a, b));

        FOVEAL_COMPARISON_STEP(eq_r, a == b);
        FOVEAL_COMPARISON_STEP(ne_r, a != b);
        FOVEAL_COMPARISON_STEP(lt_r, a < b);
        FOVEAL_COMPARISON_STEP(le_r, a <= b);
        FOVEAL_INTEGER_STEP(eq_i, a == b);
        FOVEAL_INTEGER_STEP(ne_i, a != b);
        FOVEAL_INTEGER_STEP(lt_i, a < b);
        FOVEAL_INTEGER_STEP(le_i, a <= b);
        FOVEAL_COMPARISON64_STEP(eq_l, a == b);
        FOVEAL_COMPARISON64_STEP(ne_l, a != b);
        FOVEAL_COMPARISON64_STEP(lt_l, a < b);
        FOVEAL_COMPARISON64_STEP(le_l, a <= b);
        FOVEAL_INTEGER_STEP(logical_and_b, a & b);
        FOVEAL_INTEGER_STEP(logical_or_b, a | b);
        FOVEAL_INTEGER_STEP(logical_not_b, ~a);
        FOVEAL_INTEGER_STEP(logical_xor_b, a ^ b);
      case TapeOp::select_r:
        return map<R, Int, R, R, T::lanes>(step, [](I a, V b, V c) -> V { return T::wide(a) ? b : c; });
        FOVEAL_INTEGER_STEP(select_i, (a & b) | (~a & c));
      case TapeOp::select_l:
        return map<Int64, Int, Int64, Int64, kLongs>(step, [](H a, L b, L c) -> L { return __builtin_convertvector(a, L) ? b : c; });

      case TapeOp::to_real_i:
        return map<R, Int, Int, Int, T::lanes>(step, [](I a, I, I) -> V { return __builtin_convertvector(a, V); });
      case TapeOp::to_real_b:
        return map<R, Int, Int, Int, T::lanes>(step, [](I a, I, I) -> V { return __builtin_convertvector(-a, V); });
      case TapeOp::to_integer_r:
        return map<Int, R, R, R, T::lanes>(step, [](V a, V, V) -> I { return T::truncate(a); });
        FOVEAL_INTEGER_STEP(to_integer_b, -a);
        FOVEAL_COMPARISON_STEP(to_boolean_r, a != V{});
        FOVEAL_INTEGER_STEP(to_boolean_i, a != 0);
      case TapeOp::to_real_l:
        return map<R, Int64, Int64, Int64, kLongs>(step, [](L a, L, L) { return __builtin_convertvector(a, Vec<R, kLongs>); });
      case TapeOp::to_integer64_r:
        return map<Int64, R, R, R, kLongs>(step, [](auto a, auto, auto) { return truncate64(a); });
        FOVEAL_COMPARISON64_STEP(to_boolean_l, a != 0);
        FOVEAL_INTEGER64_STEP(to_int32_l, bits<L>(bits<UnsignedVec<L>>(a) << 32) >> 32);
        FOVEAL_REAL_STEP(to_float32, to_float32(a));
        FOVEAL_REAL_STEP(to_bfloat16, to_bfloat16(a));
        FOVEAL_REAL_STEP(to_float16, to_float16(a));
      case TapeOp::lengthen:
        return map<Int64, Int, Int, Int, kLongs>(step, [](H a, H, H) { return __builtin_convertvector(a, L); });
        FOVEAL_COMPARISON64_STEP(shorten, a > 2147483647 ? splat<L>(2147483647) : a < -2147483647 - 1 ? splat<L>(-2147483647 - 1) : a);

        FOVEAL_REAL_STEP(copy_r, a);
      case TapeOp::round:
        return map<Real, double, double, double, kVectorBytes / 8>(
            step, [](auto a, auto, auto) { return __builtin_convertvector(a, Vec<Real, kVectorBytes / 8>); });
        FOVEAL_INTEGER_STEP(copy_i, a);
      case TapeOp::read_r:
        return read_reals<R>(step);
      case TapeOp::read_i:
      case TapeOp::read_l:
      case TapeOp::read_b:
        return read_integers(step);
      case TapeOp::broadcast:
        return step.integer_bytes == 8 ? broadcast<Int64>(step) : step.integer_bytes == 4 ? broadcast<Int>(step) : broadcast<R>(step);
        FOVEAL_REAL_STEP(guarded_mul, a == R{0} ? a : a * b);

      case TapeOp::zero_r:
        __builtin_memset(ref<Real>(step.out).p, 0, slots_[step.out.space]);
        return;
      case TapeOp::sum_keys:
        return sum_keys<Real>(step);
      case TapeOp::sum_lanes:
        return sum_lanes<Real>(step);
      case TapeOp::sum_diagonals:
        return sum_diagonals<Real>(step);
      case TapeOp::sum_all:
        return sum_all<Real>(step);
      case TapeOp::accumulate:
        return accumulate<Real>(step);
    }
#undef FOVEAL_REAL_STEP
#undef FOVEAL_INTEGER_STEP
#undef FOVEAL_INTEGER64_STEP
#undef FOVEAL_INTEGER_STEPS
#undef FOVEAL_COMPARISON64_STEP
#undef FOVEAL_COMPARISON_STEP
  }

  /// The divisor of a step where it is uniform and positive; otherwise 0.
  Int common_divisor(const TapeStep& step) const {
    const TapeRef b = ref<Int>(step.b);
    const Int divisor = b.row == 0 && b.lane == 0 ? *reinterpret_cast<const Int*>(b.p) : 0;
    return divisor > 0 ? divisor : 0;
  }
};

template <class Real>
void run_tape(const TapeCall& call) {
  TapeRun<Real>(call).run();
}

}  // namespace
}  // namespace foveal::cpu
