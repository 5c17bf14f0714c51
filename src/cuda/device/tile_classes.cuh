#pragma once
// From a class for each tile to runs of tiles, in two launches: classify_sm80 and list_runs_sm80. Shared with the host: plain types only.
#include "args.cuh"

namespace foveal::device {

/// kCovered: partial, but every key is kept by some query.
enum TileClass : unsigned char { kEmpty, kPartial, kCovered, kFull };

struct ClassifyArgs {
  AttentionArgs attention;
  TileRuns table;              ///< the output
  unsigned char* classes;      ///< of all tiles, row-major
  const unsigned char* known;  ///< classes known without data, else kPartial; may be null
  int rows;                    ///< of all heads and sequences that have rows of their own
  int tiles;                   ///< of one row
};

}  // namespace foveal::device
