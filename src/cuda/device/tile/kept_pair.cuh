#pragma once
// Does the mask keep a pair? For kernels that ask for single pairs, not tiles. A mask that is a band is asked by its limits: windows of any size share a binary.
//
// config.cuh: kMaskIsBand.
#include "score/score.cuh"
#include "sm90_args.cuh"

namespace foveal::device {

/// q, kv: local to the sequence, as the limits of a band are; at: the same as the program sees it.
template <class At>
FOVEAL_DEVICE bool keeps_pair(const Sm90Args& args, const At& at, int q, int kv) {
  if constexpr (kMaskIsBand) {
    return args.band_low <= kv - q && kv - q <= args.band_high;
  } else {
    return mask_keep(at, args.attention.score);
  }
}

}  // namespace foveal::device
