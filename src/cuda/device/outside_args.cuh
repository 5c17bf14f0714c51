#pragma once
// Out-of-bounds reads of parameters (Attention::checked). Shared with the host: plain types only.
#include "args.cuh"

namespace foveal::device {

constexpr int kOutsideThreads = 256;  ///< of a CTA

/// An out-of-bounds read.
struct OutsideRead {
  int param, dimension;
  long long index;
};

struct OutsideArgs {
  AttentionArgs attention;
  long long wanted;  ///< the pair whose read is reported; negative: search for the first such pair
  unsigned long long*
      first;  ///< linear index of a pair: ((batch heads + head) queries + q) keys + kv; larger than any of them if there is none
  OutsideRead* read;
};

}  // namespace foveal::device
