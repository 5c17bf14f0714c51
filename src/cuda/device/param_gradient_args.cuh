#pragma once
// What kernels/param_gradient.cuh is called with, and compiled for. Shared with the host: plain types only.

namespace foveal::device {

constexpr int kParamGradientThreads = 256;  ///< of a CTA, an element each

struct ParamGradientArgs {
  const unsigned long long* bins;  ///< exact sums, or null
  const void* values;              ///< values in row-major order, or null; neither: zeros
  void* gradient;
  int rank, unused;
  long long elements;
  long long size[6], stride[6];
};

/// kConfig.
struct ParamGradientConfig {
  int bin_bits;  ///< of exact sums (score/exact_sum.cuh)

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("bin_bits", self.bin_bits);
  }
};

}  // namespace foveal::device
