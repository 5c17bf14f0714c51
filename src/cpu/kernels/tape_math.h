// The functions of the score language on vectors. Single precision: minimax polynomials over the reduced range (error below 5e-9 each),
// accurate to 2-3 ulp. Double precision: the C library, element by element.
#pragma once
#include "cpu/kernels/vector.h"

namespace foveal::cpu {
namespace {

/// c[0] + x (c[1] + x (c[2] + ...))
template <class V, int N>
inline V polynomial(V x, const float (&c)[N]) {
  V sum = splat<V>(c[N - 1]);
  for (int i = N - 2; i >= 0; --i) sum = sum * x + c[i];
  return sum;
}

template <class V>
using IntegerVec = Vec<std::int32_t, sizeof(V) / 4>;

template <class V>
inline V to_float(IntegerVec<V> i) {
  return __builtin_convertvector(i, V);
}

/// To the nearest integer, ties to even; |x| < 2^22.
template <class V>
inline V nearest(V x) {
  return (x + 12582912.0f) - 12582912.0f;
}

/// 2^i for -126 <= i <= 127.
template <class V>
inline V power_of_two(IntegerVec<V> i) {
  return bits<V>((i + 127) << 23);
}

/// x * 2^i for |i| < 252, through two factors so that the result may be denormal or infinite.
template <class V>
inline V times_power_of_two(V x, IntegerVec<V> i) {
  const IntegerVec<V> half = i >> 1;
  return x * power_of_two<V>(half) * power_of_two<V>(i - half);
}

template <class V>
inline V limit(V x, float low, float high) {  // a NaN stays
  return smaller(larger(x, splat<V>(low)), splat<V>(high));
}

template <class V>
inline V with_sign_of(V magnitude, V sign) {
  using I = IntegerVec<V>;
  return bits<V>((bits<I>(magnitude) & 0x7FFFFFFF) | (bits<I>(sign) & static_cast<std::int32_t>(0x80000000)));
}

template <class V>
inline V absolute(V x) {
  return bits<V>(bits<IntegerVec<V>>(x) & 0x7FFFFFFF);
}

struct FloatMath {
  template <class V>
  static V exp2(V x) {
    x = limit(x, -160.0f, 160.0f);
    const V whole = nearest(x), f = x - whole;
    const V p = 1.0f + f * polynomial(f, {6.931472029e-01f, 2.402264791e-01f, 5.550332470e-02f, 9.618437366e-03f, 1.339887487e-03f,
                                          1.535336063e-04f});
    return times_power_of_two(p, __builtin_convertvector(whole, IntegerVec<V>));
  }

  template <class V>
  static V exp(V x) {
    x = limit(x, -110.0f, 110.0f);
    const V whole = nearest(x * 1.44269504f);
    V r = x - whole * 0.693359375f;  // ln 2 in two parts, the first exact in a product with a small integer
    r = r - whole * -2.12194440e-4f;
    const V p =
        1.0f + (r + r * r * polynomial(r, {5.000000095e-01f, 1.666651885e-01f, 4.166620587e-02f, 8.368887863e-03f, 1.395048622e-03f}));
    return times_power_of_two(p, __builtin_convertvector(whole, IntegerVec<V>));
  }

  /// x = 2^exponent * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); returns log(1 + f) for finite positive x.
  template <class V>
  static V log_of_fraction(V x, V& exponent) {
    using I = IntegerVec<V>;
    const I tiny = x < 1.17549435e-38f;
    x = tiny ? x * 16777216.0f : x;
    const I b = bits<I>(x), e = wrapping_sub(b, splat<I>(0x3F3504F3)) >> 23;
    exponent = to_float<V>(e + (tiny & -24));
    const V f = bits<V>(wrapping_sub(b, e << 23)) - 1.0f;
    const V p = polynomial(f, {3.333331260e-01f, -2.500000979e-01f, 2.000211962e-01f, -1.666798555e-01f, 1.421951983e-01f,
                               -1.240575620e-01f, 1.188860328e-01f, -1.167480701e-01f, 6.744542640e-02f});
    const V square = f * f;
    return f + (square * f * p - 0.5f * square);
  }

  template <class V>
  static V log_special(V x, V result) {
    constexpr float infinity = __builtin_inff();
    result = x == infinity ? x : result;
    result = x == 0.0f ? splat<V>(-infinity) : result;
    return x >= 0.0f ? result : splat<V>(__builtin_nanf(""));
  }

  template <class V>
  static V log(V x) {
    V exponent;
    const V fraction = log_of_fraction(x, exponent);
    return log_special(x, exponent * 0.693359375f + (exponent * -2.12194440e-4f + fraction));
  }

  template <class V>
  static V log2(V x) {
    V exponent;
    const V fraction = log_of_fraction(x, exponent);
    return log_special(x, exponent + fraction * 1.44269504f);
  }

  /// e / (e + 2) with e = exp(2 |x|) - 1, which keeps its digits for small x: 2^n (1 + p) - 1 = 2^n p + (2^n - 1). For large x
  /// 1 - 2 / (e + 2), whose rounding is that of the result alone: 1 - tanh^2, the derivative, cancels there.
  template <class V>
  static V tanh(V x) {
    const V y = smaller(absolute(x) * 2.0f, splat<V>(20.0f));
    const V whole = nearest(y * 1.44269504f);
    V r = y - whole * 0.693359375f;
    r = r - whole * -2.12194440e-4f;
    const V p = r + r * r * polynomial(r, {5.000000095e-01f, 1.666651885e-01f, 4.166620587e-02f, 8.368887863e-03f, 1.395048622e-03f});
    const V power = power_of_two<V>(__builtin_convertvector(whole, IntegerVec<V>));
    const V e = power * p + (power - 1.0f);
    const V inverse = reciprocal(e + 2.0f);
    return with_sign_of(e > 2.0f ? 1.0f - 2.0f * inverse : e * inverse, x);
  }

  template <class V>
  static V sigmoid(V x) {
    constexpr float last = 87.33f;  // beyond it the reciprocal would be denormal; of -infinity it is 0
    return x < -last ? V{} : reciprocal(1.0f + exp(smaller(-x, splat<V>(last))));
  }

  /// x = quadrant * pi / 2 + r, |r| <= pi / 4; reduced in double, good for |x| < 2^20.
  template <class V>
  static V reduce_angle(V x, IntegerVec<V>& quadrant) {
    constexpr int half = sizeof(V) / 8;
    using Half = Vec<float, half>;
    using Wide = Vec<double, half>;
    V r, q;
    for (int i = 0; i < 2; ++i) {
      Half part;
      __builtin_memcpy(&part, reinterpret_cast<const char*>(&x) + i * sizeof part, sizeof part);
      const Wide wide = __builtin_convertvector(part, Wide);
      const Wide turns = (wide * 0.63661977236758134 + 6755399441055744.0) - 6755399441055744.0;
      const Half rest = __builtin_convertvector(wide - turns * 1.5707963267948966, Half), whole = __builtin_convertvector(turns, Half);
      __builtin_memcpy(reinterpret_cast<char*>(&r) + i * sizeof rest, &rest, sizeof rest);
      __builtin_memcpy(reinterpret_cast<char*>(&q) + i * sizeof whole, &whole, sizeof whole);
    }
    quadrant = __builtin_convertvector(q, IntegerVec<V>);
    return r;
  }

  template <class V>
  static V sin_of_reduced(V r) {
    const V square = r * r;
    return r + r * square * polynomial(square, {-1.666666664e-01f, 8.333329386e-03f, -1.983933484e-04f, 2.718311576e-06f});
  }
  template <class V>
  static V cos_of_reduced(V r) {
    const V square = r * r;
    return 1.0f + (square * square * polynomial(square, {4.166664687e-02f, -1.388736749e-03f, 2.443844932e-05f}) - 0.5f * square);
  }

  /// sin(x + turn * pi / 2)
  template <class V>
  static V sine(V x, int turn) {
    using I = IntegerVec<V>;
    I quadrant;
    const V r = reduce_angle(x, quadrant);
    quadrant += turn;
    const V value = (quadrant & 1) == 0 ? sin_of_reduced(r) : cos_of_reduced(r);
    return bits<V>(bits<I>(value) ^ ((quadrant & 2) << 30));
  }

  template <class V>
  static bool angle_is_large(V x) {
    return any(~(absolute(x) < 1048576.0f));
  }

  template <class V, class Fn>
  static V each(V x, Fn fn) {
    for (unsigned i = 0; i < sizeof(V) / 4; ++i) x[i] = static_cast<float>(fn(static_cast<double>(x[i])));
    return x;
  }

  template <class V>
  static V sin(V x) {
    return angle_is_large(x) ? each(x, [](double v) { return __builtin_sin(v); }) : sine(x, 0);
  }
  template <class V>
  static V cos(V x) {
    return angle_is_large(x) ? each(x, [](double v) { return __builtin_cos(v); }) : sine(x, 1);
  }
  template <class V>
  static V tan(V x) {
    if (angle_is_large(x)) return each(x, [](double v) { return __builtin_tan(v); });
    IntegerVec<V> quadrant;
    const V r = reduce_angle(x, quadrant), s = sin_of_reduced(r), c = cos_of_reduced(r);
    const IntegerVec<V> even = (quadrant & 1) == 0;
    return (even ? s : -c) / (even ? c : s);
  }

  template <class V>
  static V erf(V x) {
    const V a = absolute(x), square = x * x;
    const V small = x * polynomial(square, {1.128379166e+00f, -3.761262714e-01f, 1.128360017e-01f, -2.685444451e-02f, 5.189535198e-03f,
                                            -8.020840147e-04f, 7.889116042e-05f});
    const V t = (a > 4.0f ? splat<V>(4.0f) : a) - 2.5f;  // log(erfc) over [1, 4]
    const V log_erfc = polynomial(t, {-7.806815300e+00f, -5.352680689e+00f, -9.438923294e-01f, -1.085424562e-02f, 2.167085135e-03f,
                                      -4.282199913e-04f, 6.476118951e-05f, -2.028820565e-05f, 2.513385319e-07f});
    return a < 1.0f ? small : with_sign_of(1.0f - exp(log_erfc), x);
  }

  /// Through the C library's double precision: log2 in single precision is not enough for large exponents.
  template <class V>
  static V pow(V x, V y) {
    for (unsigned i = 0; i < sizeof(V) / 4; ++i)
      x[i] = static_cast<float>(__builtin_pow(static_cast<double>(x[i]), static_cast<double>(y[i])));
    return x;
  }

  template <class V>
  static V floor(V x) {
    const V t = to_float<V>(__builtin_convertvector(x, IntegerVec<V>)), down = t > x ? t - 1.0f : t;
    return absolute(x) < 8388608.0f ? down : x;
  }
};

struct DoubleMath {
  template <class V, class Fn>
  static V each(V x, Fn fn) {
    for (unsigned i = 0; i < sizeof(V) / 8; ++i) x[i] = fn(x[i]);
    return x;
  }
#define FOVEAL_LIBM(name)                                         \
  template <class V>                                              \
  static V name(V x) {                                            \
    return each(x, [](double v) { return __builtin_##name(v); }); \
  }
  FOVEAL_LIBM(exp)
  FOVEAL_LIBM(exp2)
  FOVEAL_LIBM(log)
  FOVEAL_LIBM(log2)
  FOVEAL_LIBM(tanh)
  FOVEAL_LIBM(sin)
  FOVEAL_LIBM(cos)
  FOVEAL_LIBM(tan)
  FOVEAL_LIBM(erf)
  FOVEAL_LIBM(floor)
#undef FOVEAL_LIBM
  template <class V>
  static V sigmoid(V x) {
    return each(x, [](double v) { return 1.0 / (1.0 + __builtin_exp(-v)); });
  }
  template <class V>
  static V pow(V x, V y) {
    for (unsigned i = 0; i < sizeof(V) / 8; ++i) x[i] = __builtin_pow(x[i], y[i]);
    return x;
  }
};

template <class Real>
struct MathOf;
template <>
struct MathOf<float> {
  using type = FloatMath;
};
template <>
struct MathOf<double> {
  using type = DoubleMath;
};
template <class Real>
using Math = typename MathOf<Real>::type;

}  // namespace
}  // namespace foveal::cpu
