#pragma once
// How the fp32 sum of dQ lies in memory while the Hopper backward adds to it: each tile of kBlockQ queries is parts of 64 rows by kPartColumns, one after
// the other, each in the order of the accumulators of the warpgroup that adds to it. With 64 queries a tile the parts are columns, else rows.
#include "element.cuh"

#include "config.cuh"

namespace foveal::device {

constexpr int kDim = round_up(kHeadDim, 16);
constexpr int kSumCtas = kDim > 128 ? 2 : 1;  // that add to a tile together, two parts each
constexpr int kSumParts = 2 * kSumCtas;
constexpr bool kSplitColumns = kBlockQ == 64;
constexpr int kPartColumns = kSplitColumns ? round_up(divide_up(kDim, kSumParts), 16) : kDim;
constexpr int kSumColumns = kSplitColumns ? kSumParts * kPartColumns : kDim;  // of a row, over its parts

}  // namespace foveal::device
