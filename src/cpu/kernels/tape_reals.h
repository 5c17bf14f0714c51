// The steps of a tape on reals of type R: those of the tile's type, and fp64 where a step of an fp32 tile is wide.
#pragma once
#include "cpu/kernels/tape_math.h"
#include "cpu/kernels/tape_rounding.h"
#include "cpu/kernels/tape_words.h"

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
    const V below = ((rest != V{}) & ((rest < V{}) != (b < V{}))) ? whole - R(1) : whole;
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

class TapeReals : protected TapeWords {
 protected:
  using TapeWords::TapeWords;

  /// Long: a row for each operation, compiled to one jump table.
  template <class R>
  void reals(const TapeStep& step) {
    using T = TapeTypes<R>;
    using V = typename T::V;
    using I = typename T::I;
    using M = Math<R>;
#define FOVEAL_REAL_STEP(op, expression) \
  case TapeOp::op:                       \
    return map<R, R, R, R, T::lanes>(step, [](V a, [[maybe_unused]] V b, [[maybe_unused]] V c) -> V { return expression; })
#define FOVEAL_COMPARISON_STEP(op, expression) \
  case TapeOp::op:                             \
    return map<Int, R, R, R, T::lanes>(step, [](V a, [[maybe_unused]] V b, V) -> I { return T::narrow(expression); })
    switch (step.op) {
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
      case TapeOp::select_r:
        return map<R, Int, R, R, T::lanes>(step, [](I a, V b, V c) -> V { return T::wide(a) ? b : c; });

      case TapeOp::to_real_i:
        return map<R, Int, Int, Int, T::lanes>(step, [](I a, I, I) -> V { return __builtin_convertvector(a, V); });
      case TapeOp::to_real_b:
        return map<R, Int, Int, Int, T::lanes>(step, [](I a, I, I) -> V { return __builtin_convertvector(-a, V); });
      case TapeOp::to_integer_r:
        return map<Int, R, R, R, T::lanes>(step, [](V a, V, V) -> I { return T::truncate(a); });
        FOVEAL_COMPARISON_STEP(to_boolean_r, a != V{});
      case TapeOp::to_real_l:
        return map<R, Int64, Int64, Int64, kLongs>(step, [](L a, L, L) { return __builtin_convertvector(a, Vec<R, kLongs>); });
      case TapeOp::to_integer64_r:
        return map<Int64, R, R, R, kLongs>(step, [](auto a, auto, auto) { return truncate64(a); });
        FOVEAL_REAL_STEP(to_float32, to_float32(a));
        FOVEAL_REAL_STEP(to_bfloat16, to_bfloat16(a));
        FOVEAL_REAL_STEP(to_float16, to_float16(a));

        FOVEAL_REAL_STEP(copy_r, a);
      case TapeOp::read_r:
        return read_reals<R>(step);
      case TapeOp::broadcast:
        return step.integer_bytes == 8 ? broadcast<Int64>(step) : step.integer_bytes == 4 ? broadcast<Int>(step) : broadcast<R>(step);
        FOVEAL_REAL_STEP(guarded_mul, a == R{0} ? a : a * b);
      default:
        return words(step);
    }
#undef FOVEAL_REAL_STEP
#undef FOVEAL_COMPARISON_STEP
  }
};

}  // namespace
}  // namespace foveal::cpu
