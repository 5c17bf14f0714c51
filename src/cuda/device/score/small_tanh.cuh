#pragma once
// Coefficients for tanh of small arguments without the special-function unit. Shared with the host: plain types only.

namespace foveal::device {

/// For |x| <= kLimit, tanh(x) = x times this polynomial in x^2. The first coefficient is exactly 1, so that x - tanh(x), which the gradient
/// of a trained cap needs, is accurate for tiny x.
template <int terms>
struct SmallTanh;
/// Minimax of the relative error, 8.4e-8.
template <>
struct SmallTanh<5> {
  static constexpr float kLimit = 0.6f;
  static constexpr float kCoefficients[5] = {1.0f, -0.3333259751f, 0.1331311669f, -0.05221180775f, 0.01561263369f};
};
/// Minimax of the absolute error, 4.4e-8 and 3.4e-8: enough for exponents, whose errors enter lse as well.
template <>
struct SmallTanh<4> {
  static constexpr float kLimit = 0.42f;
  static constexpr float kCoefficients[4] = {1.0f, -0.333307628f, 0.1325579601f, -0.04681712535f};
};
template <>
struct SmallTanh<3> {
  static constexpr float kLimit = 0.22f, kLeastGain = 32.0f;
  static constexpr float kCoefficients[3] = {1.0f, -0.3332702807f, 0.1295343673f};
};

/// The factors of x and of the result are folded into the coefficients if the largest |x| is in this range: powers stay finite, and where
/// they underflow, so does what they multiply.
constexpr float kLowestSmallTanh = 0x1p-6f, kHighestSmallTanh = 0x1p11f;

// Guessing: weights 2^(gain * tanh(x)) are computed by a polynomial without a search for the largest |x|; the sum of the weights tells
// whether that was right. No weight exceeds the sum, and the polynomial grows with x: so no x is above the limit if the sum is not above
// the weight there. Below the negative limit, weights are so small that the polynomial's are off by at most kGuessError, for gains of at
// least SmallTanh::kLeastGain; a mean weight of kLeastMean makes the relative error kGuessError / kLeastMean.
constexpr float kLeastMean = 0.125f, kGuessError = 4e-7f;

}  // namespace foveal::device
