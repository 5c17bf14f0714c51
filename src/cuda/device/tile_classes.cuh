#pragma once
// From a class for each tile to the runs that the kernels walk: two launches, classify_sm80 and list_runs_sm80. Shared with the host: plain
// types only.
#include "args.cuh"

namespace foveal::device {

/// kCovered: partial, but each key is kept by some query.
enum TileClass : unsigned char { kEmpty, kPartial, kCovered, kFull };

struct ClassifyArgs {
  AttentionArgs attention;
  TileRuns table;              ///< to be written
  unsigned char* classes;      ///< of all tiles, row after row
  const unsigned char* known;  ///< the same as far as it is known without data, else kPartial; may be null
  int rows;                    ///< of all heads and sequences that have their own
  int tiles;                   ///< of one row
};

}  // namespace foveal::device
