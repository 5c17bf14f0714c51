#pragma once
// The columns of a tile that a thread's two rows keep, by sequence ends and band limits; a mask program is evaluated pair by pair.
#include "base.cuh"
#include "sm90_args.cuh"

namespace foveal::device {

/// Relative to the thread's first column. Walk: a TileWalk.
template <class Walk>
struct KeptColumns {
  int low[2], high[2];
  FOVEAL_DEVICE bool keep(int r, int column) const { return column <= high[r] && (!Walk::kLimitLow || column >= low[r]); }
};

/// For queries `query` and query + 8, in a batch of equal lengths.
template <class Walk>
FOVEAL_DEVICE KeptColumns<Walk> columns_kept_by_queries(const Sm90Args& args, int query, int key) {
  KeptColumns<Walk> columns;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    columns.high[r] = query + 8 * r < args.attention.seqlen_q ? args.attention.seqlen_kv - 1 - key : -1;
    if constexpr (Walk::kLimitHigh) columns.high[r] = min(columns.high[r], query + 8 * r + args.band_high - key);
    if constexpr (Walk::kLimitLow) columns.low[r] = query + 8 * r + args.band_low - key;
  }
  return columns;
}

}  // namespace foveal::device
