#pragma once
// What kernels/narrow_indices.cuh is called with, and compiled for. Shared with the host: plain types only.
#include "args.cuh"

namespace foveal::device {

constexpr int kNarrowThreads = 256;  ///< of a CTA, four elements each

struct NarrowArgs {
  ParamView from;
  unsigned char* to;
  long long to_stride[kMaxParamRank];
};

/// kConfig.
struct NarrowConfig {
  int rank;       ///< 1 to 4
  bool together;  ///< the last dimension is contiguous, and its rows are aligned to four elements

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("rank", self.rank), fn("together", self.together);
  }
};

}  // namespace foveal::device
