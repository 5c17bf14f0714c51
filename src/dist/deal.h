#pragma once
// Ways to deal the chunks of an axis to groups of ranks.
#include <vector>

#include "dist/layout.h"
#include "dist/workload.h"

namespace foveal::dist {

/// Chunks with their owners, and how coarse the deal was.
struct Dealt {
  std::vector<Chunk> chunks;
  std::int64_t largest_piece = 0;
};

/// Equal ranges of the axis, in order.
Dealt deal_contiguous(const std::vector<std::int64_t>& lengths, std::int64_t unit, int groups);
/// Each sequence in 2 x groups equal chunks; group i takes chunks i and 2 groups - 1 - i.
Dealt deal_zigzag(const std::vector<std::int64_t>& lengths, std::int64_t unit, int groups);
/// Sequences cut into pieces of at most 1 / fraction of a group's share, dealt by longest processing time first, then improved by swaps. Of
/// several workloads over the same sequences, the work of all counts.
Dealt deal_pieces(const std::vector<const Workload*>& workloads, int groups, int fraction);

/// The shares of groups, each cut into as many equal parts in order as it has members; owners become ranks.
std::vector<Chunk> cut_for_members(const std::vector<std::int64_t>& lengths, const std::vector<Chunk>& chunks, std::int64_t unit,
                                   int groups, int members);

}  // namespace foveal::dist
