#pragma once
// Shared with the host: plain types only.

namespace foveal::device {

struct ParamGradientArgs {
  const unsigned long long* bins;  ///< exact sums, or null
  const void* values;              ///< values in row-major order, or null; neither: zeros
  void* gradient;
  int rank, unused;
  long long elements;
  long long size[6], stride[6];
};

}  // namespace foveal::device
