#pragma once
// Rows of tensors [batch, tokens, heads, dim] on their way between shards, buffers and messages.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dist/layout.h"
#include "foveal/dist.h"

namespace foveal::dist {

/// A strided view; strides in bytes. Statistics [batch, heads, tokens] have rows of one element.
struct Rows {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch = 0, tokens = 0, heads = 0, dim = 1;
  std::int64_t batch_stride = 0, token_stride = 0, head_stride = 0, dim_stride = 0;

  std::byte* at(std::int64_t b, std::int64_t token, std::int64_t head) const {
    return data + b * batch_stride + token * token_stride + head * head_stride;
  }
  Rows slice(Range of_tokens, Range of_heads) const;
  Rows slice(Range of_tokens) const { return slice(of_tokens, {0, heads}); }
  std::int64_t bytes() const { return batch * tokens * heads * dim * static_cast<std::int64_t>(size_of(dtype)); }
};

/// Of a tensor [batch, tokens, heads, dim], or [tokens, heads, dim] when packed.
Rows rows_of(const TensorView& view);
/// Of statistics [batch, heads, tokens], or [heads, tokens] when packed.
Rows statistics_of(const TensorView& view);
/// The tensors that calls take: [batch, tokens, heads, dim] and [batch, heads, tokens].
TensorView tensor_of(const Rows& rows, Device device);
TensorView statistics_tensor(const Rows& rows, Device device);
/// The same packed, [batch * tokens, heads, dim] and [heads, batch * tokens]: of rows whose batches lie one after the other.
TensorView packed_tensor(const Rows& rows, Device device = {});
TensorView packed_statistics(const Rows& rows, Device device = {});

/// Contiguous rows of the same type and sizes.
Rows contiguous_like(const Rows& rows, std::byte* memory);

/// Do the rows of all heads lie one after the other without gaps?
bool is_dense(const Rows& rows);

/// The memory of one pass, counted, and the copies in it.
class RowMemory {
 public:
  virtual ~RowMemory() = default;
  /// What memory is for. Only messages may need memory of the transport, of which there may be little.
  enum class For { work, messages };
  virtual std::byte* take(std::size_t bytes, For use) = 0;
  /// [batch * tokens, heads, dim]: row b * tokens + token.
  Rows rows(DType dtype, std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t dim, For use = For::work);
  /// [heads, batch * tokens].
  Rows statistics(DType dtype, std::int64_t batch, std::int64_t tokens, std::int64_t heads, For use = For::work);

  /// to = from, of equal sizes; converts to the type of `to`.
  virtual void copy(const Rows& from, const Rows& to) = 0;
  /// to += from, of equal sizes and one type, f32 or f64.
  virtual void add(const Rows& from, const Rows& to) = 0;
  /// Messages of this memory.
  virtual std::uint64_t start(Transport& transport, const std::vector<Message>& sends, const std::vector<Message>& receives) = 0;
  virtual void wait(Transport& transport, std::uint64_t ticket) = 0;
  /// Is it better to send rows from where they lie than to pack them into one message?
  virtual bool direct() const = 0;
};

/// Host memory, zeros at first.
class Buffers final : public RowMemory {
 public:
  std::byte* take(std::size_t bytes, For use) override;
  void copy(const Rows& from, const Rows& to) override;
  void add(const Rows& from, const Rows& to) override;
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

}  // namespace foveal::dist
