#pragma once
// Rows of tensors by batch, token and head, and keys and values by blocks.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/kernels/block_ops.h"
#include "cpu/work.h"
#include "problem/problem.h"

namespace foveal::cpu {

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
  /// Prefetches keys `first` to `last` of a sequence to L2. dim: of all heads from `head` on that are wanted, side by side. Inlined by
  /// force: GCC drops calls of functions that only prefetch.
  [[gnu::always_inline]] void fetch(const Sequence& sequence, std::int64_t first, std::int64_t last, std::int64_t head, int dim) const {
    const int bytes = dim * static_cast<int>(size_of(rows_.dtype));
    for (std::int64_t key = first; key < last; ++key) {
      const KeyRows row = pages_ ? on_page(sequence, key, head) : rows_.keys(sequence.batch, sequence.kv_begin + key, head);
      for (int byte = 0; byte < bytes; byte += 64) __builtin_prefetch(static_cast<const char*>(row.data) + byte, 0, 2);
    }
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

}  // namespace foveal::cpu
