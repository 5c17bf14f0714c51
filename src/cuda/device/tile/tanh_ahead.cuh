#pragma once
// The tanh of a score that is capped, for several pairs side by side. The softmax leaves the special-function unit little time, and it would take two of its
// operations; where the arguments of all pairs of a warp are small, as they are in most tiles, it is a polynomial on the FMA pipes instead.
#include "score/score.cuh"
#include "score/small_tanh.cuh"
#include "tile/fragment.cuh"

namespace foveal::device {

/// The largest |raw| of a thread but for NaN, which stays NaN whatever it is taken for.
template <int count>
FOVEAL_DEVICE float largest(const float (&raw)[count]) {
  float some[4] = {};  // comparisons that need not wait for each other
#pragma unroll
  for (int i = 0; i < count; ++i) some[i % 4] = fmaxf(some[i % 4], fabsf(raw[i]));
  return fmaxf(fmaxf(some[0], some[1]), fmaxf(some[2], some[3]));
}
/// Where no registers are left for squares.
template <int count>
FOVEAL_DEVICE float square_of_largest(const float (&raw)[count]) {
  const float most = largest(raw);
  return most * most;
}
/// The largest raw^2, or NaN where there is one. Squares are what a polynomial takes next, and as integers, of which there is a maximum of three, they are ordered alike.
template <int count>
FOVEAL_DEVICE float largest_square(const float (&raw)[count]) {
  const auto square = [&](int i) { return __float_as_int(raw[i] * raw[i]); };
  int some[4] = {};
#pragma unroll
  for (int i = 0; i < count; i += 2) some[i / 2 % 4] = max(max(square(i), square(i + 1)), some[i / 2 % 4]);
  return __int_as_float(max(max(some[0], some[1]), max(some[2], some[3])));
}

/// Is the largest |raw| of all pairs of the warp small enough for a polynomial?
FOVEAL_DEVICE bool all_small(float largest, float limit) {
  return __all_sync(~0u, limit >= kLowestSmallTanh && largest <= fminf(limit, kHighestSmallTanh));
}
/// The same of squares.
FOVEAL_DEVICE bool all_squares_small(float largest, float limit) {
  const float highest = fminf(limit, kHighestSmallTanh);
  return __all_sync(~0u, limit >= kLowestSmallTanh && largest <= highest * highest);
}

constexpr int kTanhAtOnce = 4;  // as many as a multiplication takes cycles

/// tanh(raw * factor) * times, of small arguments.
template <int terms>
struct TanhPolynomial {
  float coefficients[terms];

  /// Of |raw|.
  FOVEAL_DEVICE static float limit(float factor) { return SmallTanh<terms>::kLimit * reciprocal_approx(fabsf(factor)); }

  TanhPolynomial() = default;
  FOVEAL_DEVICE TanhPolynomial(float factor, float times) {
    float power = factor * times;
#pragma unroll
    for (int i = 0; i < terms; ++i, power *= factor * factor) coefficients[i] = SmallTanh<terms>::kCoefficients[i] * power;
  }

  /// The tanh of one raw score.
  FOVEAL_DEVICE float at(float raw) const {
    float divided = coefficients[terms - 1];
#pragma unroll
    for (int term = terms - 2; term >= 0; --term) divided = fmaf(divided, raw * raw, coefficients[term]);
    return divided * raw;
  }

  /// The tanh divided by raw, for registers first, first + 1, ...
  template <int count>
  FOVEAL_DEVICE void divided(float (&tanh)[kTanhAtOnce], const float (&raw)[count], int first) const {
    float square[kTanhAtOnce];
#pragma unroll
    for (int j = 0; j < kTanhAtOnce; ++j) square[j] = raw[first + j] * raw[first + j];
#pragma unroll
    for (int j = 0; j < kTanhAtOnce; ++j) tanh[j] = coefficients[terms - 1];
#pragma unroll
    for (int term = terms - 2; term >= 0; --term) {
#pragma unroll
      for (int j = 0; j < kTanhAtOnce; ++j) tanh[j] = fmaf(tanh[j], square[j], coefficients[term]);
    }
  }

  /// The tanh, for these registers.
  template <int count>
  FOVEAL_DEVICE void evaluate(float (&tanh)[kTanhAtOnce], const float (&raw)[count], int first) const {
    divided(tanh, raw, first);
#pragma unroll
    for (int j = 0; j < kTanhAtOnce; ++j) tanh[j] *= raw[first + j];
  }
};

/// Where some argument of the warp is large: the error of the others is small beside it.
struct AnyTanhAhead {
  float factor, times;
  template <int count>
  FOVEAL_DEVICE void evaluate(float (&tanh)[kTanhAtOnce], const float (&raw)[count], int first) const {
#pragma unroll
    for (int j = 0; j < kTanhAtOnce; ++j) tanh[j] = tanh_of_large(raw[first + j], factor, times);
  }
};

/// What the exponential of a capped score takes: the tanh less the shift of its row.
template <int terms>
struct ExponentAhead : TanhPolynomial<terms> {
  float shift[2];
  template <int count>
  FOVEAL_DEVICE void evaluate(float (&exponent)[kTanhAtOnce], const float (&raw)[count], int first) const {
    this->divided(exponent, raw, first);
#pragma unroll
    for (int j = 0; j < kTanhAtOnce; ++j) exponent[j] = fmaf(exponent[j], raw[first + j], -shift[fragment_row(first + j)]);
  }
};

}  // namespace foveal::device
