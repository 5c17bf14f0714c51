#pragma once
// Adam with a warm-up, a cosine decay and clipping of the gradient's norm.
#include <cstdint>
#include <vector>

namespace gpt {

struct Schedule {
  double peak = 2e-3;
  std::int64_t warmup = 20;
  std::int64_t steps = 700;
  double rate(std::int64_t step) const;  ///< falls to a tenth of the peak at the last step
};

class Adam {
 public:
  explicit Adam(std::size_t parameters) : mean(parameters), square(parameters) {}

  /// One update; `step` counts from 0. Returns the gradient's norm before clipping at 1.
  double update(std::vector<float>& parameters, const std::vector<float>& gradients, double rate, std::int64_t step);

  std::vector<float> mean, square;  ///< running averages of the gradient and of its square
};

}  // namespace gpt
