#pragma once
// The lanes of a tile, (query head, query) pairs: their rows in tensors and their symbols.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/dtype.h"
#include "cpu/head_rows.h"
#include "cpu/tape_code.h"
#include "cpu/work.h"

namespace foveal::cpu {

constexpr int max_lanes = 64;  ///< widest tile of any table

/// lse and dlse: [batch, heads_q, seqlen_q].
template <class Real>
class LaneScalars {
 public:
  LaneScalars() = default;
  explicit LaneScalars(const TensorView& view) : data_(static_cast<Real*>(view.data)) {
    if (view.present()) batch_ = view.strides[0], head_ = view.strides[1], token_ = view.strides[2];
  }
  bool present() const { return data_ != nullptr; }
  Real& at(std::int64_t batch, std::int64_t head, std::int64_t token) const {
    return data_[batch * batch_ + head * head_ + token * token_];
  }

 private:
  Real* data_ = nullptr;
  std::int64_t batch_ = 0, head_ = 0, token_ = 0;
};

/// Calls fn(lane, head, q) for the lanes of a tile; q is local.
template <class Fn>
void for_each_lane(const LaneTile& tile, Fn&& fn) {
  int lane = 0;
  for (std::int32_t h = 0; h < tile.heads; ++h)
    for (std::int32_t q = 0; q < tile.queries; ++q) fn(lane++, tile.head + h, tile.q + q);
}

/// Calls fn(lane, logit) for the lanes with a sink, which starts their softmax.
template <class Fn>
void for_each_sink(const TensorView& sinks, const LaneTile& tile, Fn&& fn) {
  for_each_lane(tile, [&](int lane, std::int32_t head, std::int32_t) {
    const double logit = base::load(sinks.data, sinks.dtype, head * sinks.strides[0]);
    if (logit != -std::numeric_limits<double>::infinity()) fn(lane, logit);
  });
}

/// The rows of a tile's lanes in a tensor; null for padding.
struct LanePointers {
  LanePointers(const HeadRows& tensor, const Sequence& sequence, const LaneTile& tile) : stride(tensor.stride), dtype(tensor.dtype) {
    for_each_lane(tile,
                  [&](int lane, std::int32_t head, std::int32_t q) { row[lane] = tensor.row(sequence.batch, sequence.q_begin + q, head); });
  }
  LaneRows in(int lanes) const { return {row, lanes, stride, dtype}; }
  LaneRowsOut out(int lanes) const { return {row, lanes, stride, dtype}; }

  void* row[max_lanes] = {};
  std::int64_t stride;
  DType dtype;
};

inline int padded_lanes(const LaneTile& tile) { return round_up(tile.lanes(), TileFrame::lane_multiple); }

/// head and q_idx of a tile's lanes; padding repeats the last lane.
struct LaneSymbols {
  alignas(64) std::int32_t head[max_lanes], q_idx[max_lanes];

  void fill(const LaneTile& tile, const Sequence& sequence, const problem::Problem& problem) {
    for_each_lane(tile, [&](int lane, std::int32_t h, std::int32_t q) {
      head[lane] = static_cast<std::int32_t>(h + problem.head_offset);
      q_idx[lane] = static_cast<std::int32_t>(q + sequence.q_first);
    });
    for (int lane = tile.lanes(); lane < max_lanes; ++lane) head[lane] = head[tile.lanes() - 1], q_idx[lane] = q_idx[tile.lanes() - 1];
  }
};

/// The valid lanes of a tile, or of a slice of it.
struct LaneView {
  int count = 0;
  const std::int32_t *head = nullptr, *q_idx = nullptr;

  int padded(int multiple = TileFrame::lane_multiple) const { return round_up(count, multiple); }
  LaneView slice(int begin, int end) const { return {end - begin, head + begin, q_idx + begin}; }
};

/// The first block >= from that any of the tiles visits, or none. Sets tile.block to the next block of each.
template <class Tile>
std::int32_t next_block(Tile* tiles, int count, std::int32_t from) {
  std::int32_t first = BlockCursor::none;
  for (int t = 0; t < count; ++t) {
    tiles[t].block = tiles[t].cursor.next(from);
    if (tiles[t].block < first) first = tiles[t].block;
  }
  return first;
}
/// Whether the block is partial for any of them.
template <class Tile>
bool any_partial(const Tile* tiles, int count, std::int32_t block) {
  return std::any_of(tiles, tiles + count, [&](const Tile& tile) { return tile.block == block && !tile.cursor.full(); });
}

}  // namespace foveal::cpu
