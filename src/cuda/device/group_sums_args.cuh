#pragma once
// What kernels/group_sums_sm90.cuh is called with, and compiled for. Shared with the host: plain types only.
#include "args.cuh"

namespace foveal::device {

struct GroupSumsArgs {
  AttentionArgs attention;
  Tensor sums;  ///< strides of sequences and kv heads, in floats
  Tensor to;    ///< dk or dv
};

/// kConfig.
struct GroupSumsConfig {
  int columns;  ///< of the tensor, a multiple of 8

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("columns", self.columns);
  }
};

}  // namespace foveal::device
