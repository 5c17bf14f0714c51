#pragma once
// tanh of small arguments without the special-function unit. Shared with the host: plain types only.

namespace foveal::device {

/// For |x| <= kSmallTanh, tanh(x) is x times the polynomial in x^2 of these coefficients: minimax of the relative error, 2.8e-7. In fp32 with fused
/// multiply-add the error is at most 2.5e-7, and at most 4.5e-7 of tanh(x).
constexpr float kSmallTanh = 0.7f;
constexpr int kTanhTerms = 5;
constexpr float kTanhCoefficients[kTanhTerms] = {0.9999997183f, -0.3333034919f, 0.1328249669f, -0.05088129051f, 0.01381958356f};

/// Factors of x and of the result go into the coefficients while the largest |x| is between these: so powers stay finite, and where they vanish, so does what
/// they multiply.
constexpr float kLowestSmallTanh = 0x1p-6f, kHighestSmallTanh = 0x1p11f;

}  // namespace foveal::device
