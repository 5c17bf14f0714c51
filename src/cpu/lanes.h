#pragma once
// From tensors to the rows, lanes and blocks of the block operations.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/dtype.h"
#include "cpu/float_mode.h"
#include "cpu/kernels/block_ops.h"
#include "cpu/tape.h"
#include "cpu/work.h"
#include "cpu/workspace.h"

namespace foveal::cpu {

constexpr int max_lanes = 64;  ///< widest tile of any table

/// Rows of a logical [batch, seqlen, heads, dim] tensor.
class HeadRows {
 public:
  HeadRows() = default;
  explicit HeadRows(const TensorView& view)
      : data_(static_cast<char*>(view.data)), bytes_(static_cast<std::int64_t>(size_of(view.dtype))), dtype(view.dtype) {
    if (!view.present()) return;
    batch_ = view.strides[0] * bytes_, row_ = view.strides[1] * bytes_, head_ = view.strides[2] * bytes_;
    row_stride = view.strides[1], stride = view.strides[3];
  }
  void* row(std::int64_t batch, std::int64_t token, std::int64_t head) const {
    return data_ + batch * batch_ + token * row_ + head * head_;
  }
  KeyRows keys(std::int64_t batch, std::int64_t token, std::int64_t head) const {
    return {row(batch, token, head), row_stride, stride, dtype};
  }
  KeyRowsOut keys_out(std::int64_t batch, std::int64_t token, std::int64_t head) const {
    return {row(batch, token, head), row_stride, stride, dtype};
  }

 private:
  char* data_ = nullptr;
  std::int64_t bytes_ = 0, batch_ = 0, row_ = 0, head_ = 0;

 public:
  DType dtype = DType::f32;
  std::int64_t row_stride = 0, stride = 1;
};

/// Prefetches the rows of the next block to L2, spread over the visits of this one: hardware does not prefetch long strides.
class NextRows {
 public:
  NextRows(const KeyRows& rows, int keys, int dim)
      : data_(static_cast<const char*>(rows.data)),
        row_bytes_(rows.row_stride * static_cast<std::int64_t>(size_of(rows.dtype))),
        keys_(rows.stride == 1 ? keys : 0),
        bytes_(dim * static_cast<int>(size_of(rows.dtype))) {}
  /// The part of visit i of n.
  void fetch(int i, int n) const {
    for (int key = keys_ * i / n; key < keys_ * (i + 1) / n; ++key)
      for (int byte = 0; byte < bytes_; byte += 64) __builtin_prefetch(data_ + key * row_bytes_ + byte, 0, 2);
  }

 private:
  const char* data_;
  std::int64_t row_bytes_;
  int keys_, bytes_;
};

/// Keys or values by blocks: in place, or, where a block spans several pages, copied.
class KeyBlocks {
 public:
  KeyBlocks(const problem::Problem& problem, const problem::Buffers& buffers, const TensorView& view) : rows_(view) {
    if (!problem.paged) return;
    page_size_ = view.sizes[1], dim_ = view.sizes[3];
    row_stride_ = buffers.block_table.strides[0], entry_stride_ = buffers.block_table.strides[1];
    pages_ = static_cast<const std::int32_t*>(buffers.block_table.data);
  }

  /// Bytes of `copy` for block().
  static std::size_t copy_bytes(const problem::Problem& problem, int keys, int dim) {
    return problem.paged ? static_cast<std::size_t>(keys) * static_cast<std::size_t>(dim) * size_of(problem.dtype) : 0;
  }
  /// `keys` keys of a sequence from `key` on. copy: memory for blocks that span pages.
  KeyRows block(const Sequence& sequence, std::int64_t key, int keys, std::int64_t head, void* copy = nullptr) const {
    if (!pages_) return rows_.keys(sequence.batch, sequence.kv_begin + key, head);
    if (key % page_size_ + keys <= page_size_) return on_page(sequence, key, head);
    const auto width = static_cast<std::int64_t>(size_of(rows_.dtype));
    for (int done = 0; done < keys;) {
      const KeyRows from = on_page(sequence, key + done, head);
      const auto count = static_cast<int>(std::min<std::int64_t>(keys - done, page_size_ - (key + done) % page_size_));
      for (int row = 0; row < count; ++row) {
        char* to = static_cast<char*>(copy) + (done + row) * dim_ * width;
        const char* first = static_cast<const char*>(from.data) + row * from.row_stride * width;
        if (from.stride == 1) {
          std::memcpy(to, first, static_cast<std::size_t>(dim_ * width));
        } else {
          for (std::int64_t d = 0; d < dim_; ++d)
            std::memcpy(to + d * width, first + d * from.stride * width, static_cast<std::size_t>(width));
        }
      }
      done += count;
    }
    return {copy, dim_, 1, rows_.dtype};
  }
  /// The same block, to prefetch; of a block that spans pages, the first page.
  NextRows next(const Sequence& sequence, std::int64_t key, int keys, std::int64_t head, int dim) const {
    if (keys <= 0) return {{nullptr, 0, 1, rows_.dtype}, 0, dim};
    if (!pages_) return {rows_.keys(sequence.batch, sequence.kv_begin + key, head), keys, dim};
    return {on_page(sequence, key, head), static_cast<int>(std::min<std::int64_t>(keys, page_size_ - key % page_size_)), dim};
  }

 private:
  KeyRows on_page(const Sequence& sequence, std::int64_t key, std::int64_t head) const {
    const std::int64_t page = pages_[sequence.index * row_stride_ + key / page_size_ * entry_stride_];
    return rows_.keys(page, key % page_size_, head);
  }

  HeadRows rows_;
  const std::int32_t* pages_ = nullptr;
  std::int64_t page_size_ = 0, dim_ = 0, row_stride_ = 0, entry_stride_ = 0;
};

/// Rows of k and v to prefetch.
struct NextKeys {
  NextRows k, v;
  /// The part of visit i of n.
  void fetch(int i, int n) const {
    k.fetch(i, n);
    v.fetch(i, n);
  }
};

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

/// Prefetches the rows of the next tile: hardware does not prefetch long strides.
inline void fetch_lanes(const HeadRows& tensor, const Sequence& sequence, const LaneTile& tile, int dim) {
  if (tensor.stride != 1) return;
  const auto bytes = dim * static_cast<int>(size_of(tensor.dtype));
  for_each_lane(tile, [&](int, std::int32_t head, std::int32_t q) {
    const char* row = static_cast<const char*>(tensor.row(sequence.batch, sequence.q_begin + q, head));
    for (int byte = 0; byte < bytes; byte += 64) __builtin_prefetch(row + byte);
  });
}

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

  int padded() const { return round_up(count, TileFrame::lane_multiple); }
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

/// The thread state during a task: denormals are zeros, because an operation that makes one costs a hundred cycles and none is needed; and
/// enter and leave of the table.
class TaskMode {
 public:
  TaskMode(void (*enter)(), void (*leave)()) : saved_(float_mode()), leave_(leave) {
    set_float_mode(saved_ | denormals_are_zeros);
    if (enter) enter();
  }
  ~TaskMode() {
    if (leave_) leave_();
    set_float_mode(saved_);
  }
  TaskMode(const TaskMode&) = delete;
  TaskMode& operator=(const TaskMode&) = delete;

 private:
  FloatMode saved_;
  void (*leave_)();
};

/// Shrinks the range to the rows that some valid lane attends to. Saves work, and padded keys, which may hold NaN, are never read.
inline KeyRange trim(const LaneRanges& ranges, int lanes, int key_multiple, KeyRange range) {
  std::int32_t first = range.end, last = range.begin;
  for (int lane = 0; lane < lanes; ++lane)
    if (ranges.first[lane] < ranges.last[lane]) first = std::min(first, ranges.first[lane]), last = std::max(last, ranges.last[lane]);
  if (last <= first) return {range.begin, range.begin};
  return {std::max(range.begin, first / key_multiple * key_multiple), std::min(range.end, last)};
}

/// The same from a tile in which masked pairs are -inf.
template <class Real>
KeyRange trim(const Real* tile, int ld, int lanes, int key_multiple, KeyRange range) {
  const auto empty = [&](int key) {
    const Real* row = tile + key * ld;
    for (int lane = 0; lane < lanes; ++lane)
      if (row[lane] != -std::numeric_limits<Real>::infinity()) return false;
    return true;
  };
  while (range.end > range.begin && empty(range.end - 1)) --range.end;
  int begin = range.begin;
  while (begin < range.end && empty(begin)) ++begin;
  return {std::max(range.begin, begin / key_multiple * key_multiple), range.end};
}

/// Half of the lanes where the two halves should run separately, because together they then need fewer keys (on the diagonal of a causal
/// mask); otherwise all lanes.
inline int first_slice(const LaneRanges& ranges, int lanes, int half, KeyRange all) {
  if (lanes <= half) return lanes;
  const KeyRange lower = trim(ranges, half, 1, all), upper = trim({ranges.first + half, ranges.last + half}, lanes - half, 1, all);
  const KeyRange together = trim(ranges, lanes, 1, all);
  const int apart = lower.end - lower.begin + upper.end - upper.begin;
  return 8 * apart <= 7 * 2 * (together.end - together.begin) ? half : lanes;
}

}  // namespace foveal::cpu
