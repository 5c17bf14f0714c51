#pragma once
// How the fp32 sum of dQ lies in memory while the Hopper backward adds to it: each tile of kBlockQ queries is parts of 64 rows by kPartColumns, one after
// the other, each in the order of the accumulators of the warpgroup that adds to it. With 64 queries a tile the parts are columns, else rows.
#include "element.cuh"
#include "layout/sm90.cuh"

#include "config.cuh"

namespace foveal::device {

constexpr DqSumShape kDqSum(kHeadDim, kBlockQ);
constexpr int kDim = kDqSum.dim;
constexpr int kSumCtas = kDqSum.ctas;  // that add to a tile together, two parts each
constexpr int kSumParts = kDqSum.parts;
constexpr bool kSplitColumns = kDqSum.splits_columns;
constexpr int kPartColumns = kDqSum.part_columns;
constexpr int kSumColumns = kDqSum.columns;

}  // namespace foveal::device
