#pragma once
// tanh of capped scores (softcap), for several pairs at once. The softmax saturates the special-function unit, of which tanh takes two
// operations; where all arguments of a warp are small, as in most tiles, a polynomial on the FMA pipes replaces it.
#include "score/score.cuh"
#include "score/small_tanh.cuh"
#include "tile/fragment.cuh"

namespace foveal::device {

/// The thread's largest |raw|, ignoring NaN, which stays NaN in either form.
template <int count>
FOVEAL_DEVICE float largest(const float (&raw)[count]) {
  float some[4] = {};  // independent chains of comparisons
#pragma unroll
  for (int i = 0; i < count; ++i) some[i % 4] = fmaxf(some[i % 4], fabsf(raw[i]));
  return fmaxf(fmaxf(some[0], some[1]), fmaxf(some[2], some[3]));
}
/// For kernels without registers for squares.
template <int count>
FOVEAL_DEVICE float square_of_largest(const float (&raw)[count]) {
  const float most = largest(raw);
  return most * most;
}
/// The largest raw^2, or NaN. The polynomial needs the squares anyway, and as integers, which have a three-input maximum, they have the
/// same order.
template <int count>
FOVEAL_DEVICE float largest_square(const float (&raw)[count]) {
  const auto square = [&](int i) { return __float_as_int(raw[i] * raw[i]); };
  int some[4] = {};
#pragma unroll
  for (int i = 0; i < count; i += 2) some[i / 2 % 4] = max(max(square(i), square(i + 1)), some[i / 2 % 4]);
  return __int_as_float(max(max(some[0], some[1]), max(some[2], some[3])));
}

/// Are all |raw| of the warp small enough for a polynomial?
FOVEAL_DEVICE bool all_small(float largest, float limit) {
  return __all_sync(~0u, limit >= kLowestSmallTanh && largest <= fminf(limit, kHighestSmallTanh));
}
/// The same for squares.
FOVEAL_DEVICE bool all_squares_small(float largest, float limit) {
  const float highest = fminf(limit, kHighestSmallTanh);
  return __all_sync(~0u, limit >= kLowestSmallTanh && largest <= highest * highest);
}

constexpr int kTanhAtOnce = 4;  // cycles that a multiplication takes

/// tanh(raw * factor) * times for small arguments.
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

  /// tanh / raw, for registers first, first + 1, ...
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

  /// tanh, for these registers.
  template <int count>
  FOVEAL_DEVICE void evaluate(float (&tanh)[kTanhAtOnce], const float (&raw)[count], int first) const {
    divided(tanh, raw, first);
#pragma unroll
    for (int j = 0; j < kTanhAtOnce; ++j) tanh[j] *= raw[first + j];
  }
};

/// If some argument of the warp is large: the error for small ones is negligible beside it.
struct AnyTanhAhead {
  float factor, times;
  template <int count>
  FOVEAL_DEVICE void evaluate(float (&tanh)[kTanhAtOnce], const float (&raw)[count], int first) const {
#pragma unroll
    for (int j = 0; j < kTanhAtOnce; ++j) tanh[j] = tanh_of_large(raw[first + j], factor, times);
  }
};

/// Of any arguments, each looked at by itself.
struct TanhOfEach {
  float factor, times;
  template <int count>
  FOVEAL_DEVICE void evaluate(float (&tanh)[kTanhAtOnce], const float (&raw)[count], int first) const {
#pragma unroll
    for (int j = 0; j < kTanhAtOnce; ++j) tanh[j] = fv_tanh(raw[first + j], factor) * times;
  }
};

/// Exponent of a capped score: tanh less the shift of its row.
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
