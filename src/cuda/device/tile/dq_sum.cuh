#pragma once
// Layout of the fp32 dQ accumulator of the Hopper backward: a tile of kBlockQ queries is a sequence of parts of 64 rows by kPartColumns,
// each in the accumulator order of the warpgroup that adds to it. With 64 queries a tile the parts are columns, otherwise rows.
//
// config.cuh: kProblem, kConfig (a BackwardConfig or BackwardRowsConfig).
#include "element.cuh"
#include "layout/sm90.cuh"

#include "config.cuh"

namespace foveal::device {

constexpr int kBlockQ = kConfig.block_q;
constexpr DqSumShape kDqSum(kProblem.head_dim, kBlockQ);
constexpr int kDim = kDqSum.dim;
constexpr int kSumCtas = kDqSum.ctas;  // that add to a tile, two parts each
constexpr int kSumParts = kDqSum.parts;
constexpr bool kSplitColumns = kDqSum.splits_columns;
constexpr int kPartColumns = kDqSum.part_columns;
constexpr int kSumColumns = kDqSum.columns;

}  // namespace foveal::device
