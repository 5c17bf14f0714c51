#pragma once
// Rows of tensors [batch, tokens, heads, dim] on their way between shards, buffers and messages.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dist/layout.h"
#include "foveal/tensor.h"

namespace foveal::dist {

/// Strides in bytes. Statistics [batch, heads, tokens] are rows of one element.
struct Rows {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch = 0, tokens = 0;  ///< sizes
  std::int64_t heads = 0, dim = 1;
  std::int64_t batch_stride = 0, token_stride = 0, head_stride = 0, dim_stride = 0;

  std::byte* at(std::int64_t b, std::int64_t token, std::int64_t head) const {
    return data + b * batch_stride + token * token_stride + head * head_stride;
  }
  /// Of one token and so many heads, in every row of the batch.
  std::int64_t token_bytes(std::int64_t of_heads) const { return batch * of_heads * dim * static_cast<std::int64_t>(size_of(dtype)); }
};

/// Of a tensor [batch, tokens, heads, dim], or [tokens, heads, dim] when packed.
Rows rows_of(const TensorView& view);
/// Of statistics [batch, heads, tokens], or [heads, tokens] when packed.
Rows statistics_of(const TensorView& view);

/// The memory of one pass, counted.
class Buffers {
 public:
  std::byte* take(std::size_t bytes);
  /// [batch * tokens, heads, dim], zeros: row b * tokens + token.
  Rows rows(DType dtype, std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t dim);
  /// [heads, batch * tokens], zeros.
  Rows statistics(DType dtype, std::int64_t batch, std::int64_t tokens, std::int64_t heads);
  std::size_t bytes() const { return bytes_; }

 private:
  std::vector<std::vector<std::byte>> blocks_;
  std::size_t bytes_ = 0;
};
/// What a call takes as a packed tensor.
TensorView packed_view(const Rows& rows);
TensorView packed_statistics(const Rows& rows);

/// Copies `count` tokens of some heads, in every row of the batch. Types and sizes are equal.
void copy(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token, std::int64_t to_head,
          std::int64_t count, std::int64_t heads);
/// The same, adding: f32 or f64.
void add(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token, std::int64_t to_head,
         std::int64_t count, std::int64_t heads);
/// The same, converting to the type of `to`.
void convert(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token, std::int64_t to_head,
             std::int64_t count, std::int64_t heads);

/// `count` tokens of some heads as they lie in a message.
Rows in_message(std::byte* memory, const Rows& like, std::int64_t count, std::int64_t heads);

}  // namespace foveal::dist
