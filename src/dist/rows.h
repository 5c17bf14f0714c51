#pragma once
// Rows of tensors [batch, tokens, heads, dim] on their way between shards, buffers and messages.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dist/layout.h"
#include "foveal/dist.h"

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

/// Do the rows of all heads lie one after the other without gaps?
bool is_dense(const Rows& rows);

/// The memory of one pass, counted, and what is done with rows there.
class RowMemory {
 public:
  virtual ~RowMemory() = default;
  virtual std::byte* take(std::size_t bytes) = 0;
  /// [batch * tokens, heads, dim]: row b * tokens + token.
  Rows rows(DType dtype, std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t dim);
  /// [heads, batch * tokens].
  Rows statistics(DType dtype, std::int64_t batch, std::int64_t tokens, std::int64_t heads);

  /// `count` tokens of some heads, in every row of the batch. Types and sizes are equal; `convert` goes to the type of `to`.
  virtual void copy(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token,
                    std::int64_t to_head, std::int64_t count, std::int64_t heads) = 0;
  virtual void add(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token,
                   std::int64_t to_head, std::int64_t count, std::int64_t heads) = 0;
  virtual void convert(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token,
                       std::int64_t to_head, std::int64_t count, std::int64_t heads) = 0;
  /// Messages of this memory.
  virtual std::uint64_t start(Transport& transport, const std::vector<Message>& sends, const std::vector<Message>& receives) = 0;
  virtual void wait(Transport& transport, std::uint64_t ticket) = 0;
  /// Is it better to send from where rows lie than to gather them into one message?
  virtual bool direct() const = 0;
};

/// Host memory, zeros at first.
class Buffers final : public RowMemory {
 public:
  std::byte* take(std::size_t bytes) override;
  void copy(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token, std::int64_t to_head,
            std::int64_t count, std::int64_t heads) override;
  void add(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token, std::int64_t to_head,
           std::int64_t count, std::int64_t heads) override;
  void convert(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token,
               std::int64_t to_head, std::int64_t count, std::int64_t heads) override;
  std::uint64_t start(Transport& transport, const std::vector<Message>& sends, const std::vector<Message>& receives) override {
    return transport.start(sends, receives);
  }
  void wait(Transport& transport, std::uint64_t ticket) override { transport.wait(ticket); }
  bool direct() const override { return false; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::vector<std::vector<std::byte>> blocks_;
  std::size_t bytes_ = 0;
};
/// What a call takes as a packed tensor.
TensorView packed_view(const Rows& rows);
TensorView packed_statistics(const Rows& rows);

/// In host memory: copies `count` tokens of some heads, in every row of the batch. Types and sizes are equal.
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
