#include "adam.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gpt {

double Schedule::rate(std::int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double progress = static_cast<double>(step - warmup) / static_cast<double>(std::max<std::int64_t>(steps - warmup, 1));
  return peak * (0.1 + 0.45 * (1 + std::cos(std::numbers::pi * std::min(progress, 1.0))));
}

double Adam::update(std::vector<float>& parameters, const std::vector<float>& gradients, double rate, std::int64_t step) {
  constexpr float decay_mean = 0.9f, decay_square = 0.95f, epsilon = 1e-8f;
  double squares = 0;
  for (const float g : gradients) squares += static_cast<double>(g) * g;
  const double norm = std::sqrt(squares);
  const auto clip = static_cast<float>(norm > 1 ? 1 / norm : 1);
  const auto t = static_cast<double>(step + 1);
  const auto mean_weight = static_cast<float>(rate / (1 - std::pow(decay_mean, t)));
  const auto square_weight = static_cast<float>(1 / (1 - std::pow(decay_square, t)));
  const auto size = static_cast<std::int64_t>(parameters.size());
  float *p = parameters.data(), *m = mean.data(), *s = square.data();
  const float* gradient = gradients.data();
#pragma omp parallel for simd schedule(static)
  for (std::int64_t i = 0; i < size; ++i) {
    const float g = gradient[i] * clip;
    m[i] = decay_mean * m[i] + (1 - decay_mean) * g;
    s[i] = decay_square * s[i] + (1 - decay_square) * g * g;
    p[i] -= mean_weight * m[i] / (std::sqrt(s[i] * square_weight) + epsilon);
  }
  return norm;
}

}  // namespace gpt
