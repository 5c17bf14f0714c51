#pragma once
// tanh of small arguments without the special-function unit. Shared with the host: plain types only.

namespace foveal::device {

/// For |x| <= kLimit, tanh(x) is x times the polynomial in x^2 of these coefficients. The first one is 1, so that what remains of x - tanh(x) for tiny x, as
/// the gradient of a trained cap needs it, is right.
template <int terms>
struct SmallTanh;
/// Minimax of the relative error, 8.4e-8.
template <>
struct SmallTanh<5> {
  static constexpr float kLimit = 0.6f;
  static constexpr float kCoefficients[5] = {1.0f, -0.3333259751f, 0.1331311669f, -0.05221180775f, 0.01561263369f};
};
/// Minimax of the error, 4.4e-8 and 3.4e-8: enough for exponents, whose errors lse collects.
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

/// Factors of x and of the result go into the coefficients while the largest |x| is between these: so powers stay finite, and where they vanish, so does what
/// they multiply.
constexpr float kLowestSmallTanh = 0x1p-6f, kHighestSmallTanh = 0x1p11f;

// Weights 2^(gain * tanh(x)) may be guessed: a polynomial is taken without a search for the largest |x|, and a sum of the weights tells whether that was
// right. None exceeds the sum; so no x is above the limit where the sum is not above the weight there, as the polynomial grows with x. Below the other limit
// weights are so small that those of the polynomial are off by at most kGuessError, for gains of at least SmallTanh::kLeastGain; a sum of kLeastMean for each
// weight makes that the relative error kGuessError / kLeastMean.
constexpr float kLeastMean = 0.125f, kGuessError = 4e-7f;

}  // namespace foveal::device
