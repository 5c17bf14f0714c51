#pragma once
// Runtime of emitted score text: the functions of the table of operations, and reads of parameters. For 16-bit inputs transcendental
// functions use the special-function unit (errors near 2^-22, far below the rounding of the inputs; its own tanh, 2^-11, would show in
// lse); f32 and f64 use the exact ones. fv_exp, fv_sigmoid, fv_tanh also take a product x * factor: a constant factor is folded into the
// one that base 2 needs.
#include "args.cuh"
#include "element.cuh"
#include "score/approximations.cuh"
#include "score/key_steps.cuh"
#include "score/power.cuh"
#include "score/remainder.cuh"
#include "score/small_tanh.cuh"
#include "score/trigonometry.cuh"

#include "config.cuh"

namespace foveal::device {

using real = typename ElementFacts<Element>::Real;
constexpr bool kFastMath = sizeof(Element) == 2;

FOVEAL_DEVICE int fv_floor_div(int a, int b) {
  if (b == 0) return 0;
  const int quotient = a / b;
  return quotient - ((a % b != 0) & ((a ^ b) < 0));
}
FOVEAL_DEVICE i64 fv_floor_div(i64 a, i64 b) {
  if (b == 0) return 0;
  const i64 quotient = a / b;
  return quotient - ((a % b != 0) & ((a ^ b) < 0));
}
FOVEAL_DEVICE float fv_floor_div(float a, float b) { return floor_of_quotient(a, b); }
/// a / b may be rounded up to an integer that it is below, the remainder is exact.
FOVEAL_DEVICE double fv_floor_div(double a, double b) {
  if (b == 0) return a / b;
  const double rest = fmod(a, b), whole = rint((a - rest) / b);
  return rest != 0 && (rest < 0) != (b < 0) ? whole - 1 : whole;
}

/// Towards zero, saturating. NaN becomes 0, which the conversions of double and to 64 bits do not give.
template <class Int, class T>
FOVEAL_DEVICE Int fv_truncated(T x) {
  return isnan(x) ? Int(0) : Int(x);
}
FOVEAL_DEVICE int fv_shift_left(int a, int b) { return b > 31 ? 0 : int(unsigned(a) << (b < 0 ? 0 : b)); }
FOVEAL_DEVICE i64 fv_shift_left(i64 a, i64 b) { return i64((unsigned long long)(a) << (b < 0 ? 0 : b > 63 ? 63 : b)); }
FOVEAL_DEVICE int fv_shift_right(int a, int b) { return a >> (b < 0 ? 0 : b > 31 ? 31 : b); }
FOVEAL_DEVICE i64 fv_shift_right(i64 a, i64 b) { return a >> (b < 0 ? 0 : b > 63 ? 63 : b); }

FOVEAL_DEVICE int fv_mod(int a, int b) {
  if (b == 0) return 0;
  const int rest = a % b;
  return rest != 0 && (rest ^ b) < 0 ? rest + b : rest;
}
FOVEAL_DEVICE i64 fv_mod(i64 a, i64 b) {
  if (b == 0) return 0;
  const i64 rest = a % b;
  return rest != 0 && (rest ^ b) < 0 ? rest + b : rest;
}
FOVEAL_DEVICE float fv_mod(float a, float b) { return remainder_of(a, b); }
FOVEAL_DEVICE double fv_mod(double a, double b) {
  const double rest = fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

template <class T>
FOVEAL_DEVICE T fv_abs(T x) {
  return x < 0 ? -x : x;
}
// Of reals: a NaN of either stays.
// NOLINTBEGIN(misc-redundant-expression): a NaN differs from itself
template <class T>
FOVEAL_DEVICE T fv_min(T a, T b) {
  return b < a || b != b ? b : a;
}
template <class T>
FOVEAL_DEVICE T fv_max(T a, T b) {
  return a < b || b != b ? b : a;
}
// NOLINTEND(misc-redundant-expression)
FOVEAL_DEVICE float fv_min(float a, float b) {
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
}
FOVEAL_DEVICE float fv_max(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}

// kFast = false where a value decides something (an index, a comparison): a small error would flip the result.
template <bool kFast = kFastMath>
FOVEAL_DEVICE float fv_divide(float a, float b) {
  return kFast ? a * reciprocal_approx(b) : a / b;
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE double fv_divide(double a, double b) {
  return a / b;
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE float fv_exp2(float x) {
  return kFast ? exp2_real(x) : exp2f(x);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE double fv_exp2(double x) {
  return exp2(x);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE float fv_exp(float x, float factor = 1) {
  return kFast ? exp2_real(x * (factor * kLog2e)) : expf(x * factor);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE double fv_exp(double x, double factor = 1) {
  return exp(x * factor);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE float fv_log2(float x) {
  return kFast ? log2_approx(x) : log2f(x);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE double fv_log2(double x) {
  return log2(x);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE float fv_log(float x) {
  return kFast ? log2_approx(x) * kLn2 : logf(x);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE double fv_log(double x) {
  return log(x);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE float fv_sigmoid(float x, float factor = 1) {
  return kFast ? reciprocal_approx(1 + exp2_real(x * (factor * -kLog2e))) : 1 / (1 + expf(-x * factor));
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE double fv_sigmoid(double x, double factor = 1) {
  return 1 / (1 + exp(-x * factor));
}
/// tanh(x * factor) * times as 1 - 2 / (1 + e^2x): absolute error 1e-7 * times, saturates cleanly.
FOVEAL_DEVICE float tanh_of_large(float x, float factor, float times) {
  return fmaf(-2 * times, reciprocal_approx(1 + exp2_real(x * (factor * (2 * kLog2e)))), times);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE float fv_tanh(float x, float factor = 1) {
  if (!kFast) return tanhf(x * factor);
  const float y = x * factor, square = y * y;
  constexpr auto& c = SmallTanh<3>::kCoefficients;
  return fabsf(y) <= SmallTanh<3>::kLimit ? fmaf(y * square, fmaf(c[2], square, c[1]), y) : tanh_of_large(x, factor, 1);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE double fv_tanh(double x, double factor = 1) {
  return tanh(x * factor);
}

template <bool kFast = kFastMath>
FOVEAL_DEVICE float fv_sqrt(float x) {
  return kFast ? sqrt_approx(x) : sqrtf(x);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE double fv_sqrt(double x) {
  return sqrt(x);
}
FOVEAL_DEVICE float fv_rsqrt(float x) { return rsqrtf(x); }
FOVEAL_DEVICE double fv_rsqrt(double x) { return 1 / sqrt(x); }
template <bool kFast = kFastMath>
FOVEAL_DEVICE float fv_sin(float x) {
  return kFast ? sine(x) : sinf(x);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE double fv_sin(double x) {
  return sin(x);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE float fv_cos(float x) {
  return kFast ? cosine(x) : cosf(x);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE double fv_cos(double x) {
  return cos(x);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE float fv_tan(float x) {
  return kFast ? sine(x) * reciprocal_approx(cosine(x)) : tanf(x);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE double fv_tan(double x) {
  return tan(x);
}
FOVEAL_DEVICE float fv_erf(float x) { return erff(x); }
FOVEAL_DEVICE double fv_erf(double x) { return erf(x); }
FOVEAL_DEVICE float fv_floor(float x) { return floorf(x); }
FOVEAL_DEVICE double fv_floor(double x) { return floor(x); }

template <class Short, class Real>
FOVEAL_DEVICE Real fv_rounded(Real x) {
  Short nearest;
  from_real(nearest, x);
  return Real(to_real(nearest));
}
/// Of a float: an addition that is not contracted with the product before it.
FOVEAL_DEVICE float fv_to_float32(float x) {
  float y;
  asm("add.rn.f32 %0, %1, 0f80000000;" : "=f"(y) : "f"(x));
  return y;
}
FOVEAL_DEVICE double fv_to_float32(double x) { return fv_rounded<float>(x); }
template <class Real>
FOVEAL_DEVICE Real fv_to_bfloat16(Real x) {
  return fv_rounded<bf16>(x);
}
template <class Real>
FOVEAL_DEVICE Real fv_to_float16(Real x) {
  return fv_rounded<f16>(x);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE float fv_pow(float x, float y) {
  return kFast ? power(x, y) : powf(x, y);
}
template <bool kFast = kFastMath>
FOVEAL_DEVICE double fv_pow(double x, double y) {
  return pow(x, y);
}

/// Opaque to the compiler: it would refactor the sum of a row value and a column value for each pair.
FOVEAL_DEVICE int fv_kept(int x) {
  int kept;
  asm("mov.b32 %0, %1;" : "=r"(kept) : "r"(x));
  return kept;
}

/// An integer in [-2^22, 2^22] as a real, exactly, by an addition: a conversion would use the unit that exponentials need.
FOVEAL_DEVICE real fv_small_integer(int x) {
  if constexpr (sizeof(real) == 8) return x;
  return real(__int_as_float(0x4b400000 + x) - 12582912.0f);  // 3 * 2^22
}

#if __CUDA_ARCH__ >= 900
FOVEAL_DEVICE int fv_clamp(int index, int size) {
  int clamped;
  asm("min.s32.relu %0, %1, %2;" : "=r"(clamped) : "r"(index), "r"(size - 1));
  return clamped;
}
#endif

/// An index clamped into [0, size).
template <class T>
FOVEAL_DEVICE int fv_clamp(T index, int size) {
  return index < 0 ? 0 : index < size ? int(index) : size - 1;
}

/// Element `offset` of a floating parameter as a real.
template <class T, class Offset>
FOVEAL_DEVICE real fv_load(const void* data, Offset offset) {
  if constexpr (sizeof(T) == 2) {
    T value;
    value.bits = __ldg(static_cast<const u16*>(data) + offset);
    return real(to_real(value));
  } else {
    return real(__ldg(static_cast<const T*>(data) + offset));
  }
}
/// Element `offset` of a parameter as it is stored.
template <class T, class Offset>
FOVEAL_DEVICE T fv_load_exact(const void* data, Offset offset) {
  return __ldg(static_cast<const T*>(data) + offset);
}

}  // namespace foveal::device
