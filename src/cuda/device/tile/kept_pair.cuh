#pragma once
// The mask for single pairs. A band is tested by its limits, so that windows of any size share a binary.
//
// config.cuh: kConfig (a BackwardRowsConfig).
#include "score/score.cuh"
#include "sm90_args.cuh"

namespace foveal::device {

/// q, kv: local positions, as band limits are; at: global ones, as the mask program sees them.
template <class At>
FOVEAL_DEVICE bool keeps_pair(const Sm90Args& args, const At& at, int q, int kv) {
  if constexpr (kConfig.mask_is_band) {
    return args.band_low <= kv - q && kv - q <= args.band_high;
  } else {
    return mask_keep(at, args.attention.score);
  }
}

}  // namespace foveal::device
