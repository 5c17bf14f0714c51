#pragma once
// Arguments of kernels/narrow_indices.cuh, shared with the host: plain types only.
#include "args.cuh"

namespace foveal::device {

struct NarrowArgs {
  ParamView from;
  unsigned char* to;
  long long to_stride[kMaxParamRank];
};

}  // namespace foveal::device
