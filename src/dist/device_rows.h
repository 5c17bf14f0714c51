#pragma once
// Rows in the memory of a GPU: kernels move and add them in the order of a stream.
#include <map>
#include <vector>

#include "cuda/launch/rows.h"
#include "dist/rows.h"
#include "dist/side_stream.h"

namespace foveal::dist {

/// Memory that passes reuse: what a pass takes is taken in the same order by the next one. One pass at a time.
class DeviceBuffers final : public RowMemory {
 public:
  /// side_goes_first: CTAs of the side stream start before waiting ones of the caller's.
  explicit DeviceBuffers(bool side_goes_first) : side_(side_goes_first) {}
  ~DeviceBuffers() override;
  /// A pass on this stream begins: memory taken before is free again. Messages arrive in memory of this transport, if it has its own.
  /// A rehearsal takes its memory and loads its kernels, and nothing else: either may wait for all that a GPU has to do, and so must not happen in a pass, where that
  /// may wait for other ranks.
  void begin(Device device, Stream stream, Transport& transport, bool rehearses = false);
  bool rehearses() const { return rehearses_; }

  std::byte* take(std::size_t bytes) override;
  void copy(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token, std::int64_t to_head,
            std::int64_t count, std::int64_t heads) override;
  void add(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token, std::int64_t to_head,
           std::int64_t count, std::int64_t heads) override;
  void convert(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token,
               std::int64_t to_head, std::int64_t count, std::int64_t heads) override;
  std::uint64_t start(Transport& transport, const std::vector<Message>& sends, const std::vector<Message>& receives) override;
  void wait(Transport& transport, std::uint64_t ticket) override;
  bool direct() const override { return true; }

  /// Where work runs side by side: the caller's stream, and a side stream.
  enum class Lane { caller, side };
  /// All that comes while this lives is in the order of that lane.
  class On {
   public:
    On(DeviceBuffers& buffers, Lane lane) : buffers_(buffers), before_(buffers.lane_) { buffers.lane_ = lane; }
    ~On() { buffers_.lane_ = before_; }
    On(const On&) = delete;
    On& operator=(const On&) = delete;

   private:
    DeviceBuffers& buffers_;
    Lane before_;
  };
  Lane lane() const { return lane_; }
  Stream stream() const { return lane_ == Lane::caller ? stream_ : side_.stream(); }
  /// Scratch of one launch; the next one of its lane has it too.
  void* workspace(std::size_t bytes);
  /// From here on launches of the side stream may run, until they are joined.
  void fork() { side_.fork(device_, stream_); }
  void join() { side_.join(stream_); }

  /// Zeros in all rows of a range of tokens of dense rows.
  void clear(const Rows& rows, Range tokens);
  /// -inf in f64 statistics.
  void clear_sums(const Rows& sums);
  /// out and lse (no data: unwanted) from the wide sums of parts; the sink's logits begin with the head of the first row.
  void finish(const Rows& wide, const Rows& sums, const Rows& out, const Rows& lse, const TensorView& sink, std::int64_t first_head,
              std::int64_t tokens);
  /// to = from + more, in the type of `to`; all of their rows.
  void convert_sum(const Rows& from, const Rows& more, const Rows& to);
  /// f64 for each head.
  void sink_gradient(const Rows& out, const Rows& dout, const Rows& lse, const Rows& dlse, const TensorView& sink, std::int64_t first_head,
                     double* gradient);

  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  struct Block {
    void* memory = nullptr;
    std::size_t bytes = 0;
    bool of_transport = false;
  };
  /// Messages by way of host memory.
  struct Staged {
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::pair<Message, std::size_t>> receives;  ///< where to, and from which memory
  };
  void move(const Rows& from, std::int64_t from_token, std::int64_t from_head, const Rows& to, std::int64_t to_token, std::int64_t to_head,
            std::int64_t count, std::int64_t heads, bool adds);
  void release() noexcept;
  void release(Block& block) noexcept;
  void grow(Block& block, std::size_t bytes, bool for_messages);

  Device device_{};
  Stream stream_{};  ///< the caller's
  Lane lane_ = Lane::caller;
  bool rehearses_ = false;
  Transport* transport_ = nullptr;
  std::vector<Block> blocks_;
  Block workspaces_[2]{};  ///< of each lane
  SideStream side_;
  std::size_t next_ = 0, bytes_ = 0;
  std::map<std::uint64_t, Staged> staged_;
  cuda::driver::Memory none_;  ///< -inf in f64
};

}  // namespace foveal::dist
