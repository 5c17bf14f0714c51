#pragma once
// Reads outside their parameters (Attention::checked). Shared with the host: plain types only.
#include "args.cuh"

namespace foveal::device {

/// A read outside its parameter.
struct OutsideRead {
  int param, dimension;
  long long index;
};

struct OutsideArgs {
  AttentionArgs attention;
  long long wanted;           ///< number of the pair whose read is written; negative: the first such pair is looked for
  unsigned long long* first;  ///< number of a pair: ((batch heads + head) queries + q) keys + kv; above all of them where there is none
  OutsideRead* read;
};

}  // namespace foveal::device
