#pragma once
// Arguments of kernels/group_sums_sm90.cuh. Shared with the host: plain types only.
#include "args.cuh"

namespace foveal::device {

struct GroupSumsArgs {
  AttentionArgs attention;
  Tensor sums;  ///< strides of sequences and kv heads, in floats
  Tensor to;    ///< dk or dv
};

}  // namespace foveal::device
