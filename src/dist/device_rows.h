#pragma once
// Rows in the memory of a GPU, moved and added by kernels in stream order.
#include <array>
#include <map>
#include <vector>

#include "cuda/launch/move_rows.h"
#include "dist/rows.h"
#include "dist/side_stream.h"

namespace foveal::dist {

/// Memory that is reused from pass to pass: each takes the same blocks in the same order. One pass at a time.
class DeviceBuffers final : public RowMemory {
 public:
  enum class Memory { real, made_up };
  /// side_goes_first: CTAs of the first side stream start before waiting ones of the others. Of made-up memory, only warm-ups: addresses as
  /// of real memory, to plan with.
  explicit DeviceBuffers(bool side_goes_first, Memory memory = Memory::real)
      : made_up_(memory == Memory::made_up), sides_{SideStream(side_goes_first), SideStream(false), SideStream(false)} {}
  ~DeviceBuffers() override;
  /// A pass on this stream begins, which may reuse all memory. Messages arrive in memory of this transport, if it has its own.
  /// A warm-up only takes memory and loads kernels. Both may wait for all work of the GPU, which a pass
  /// must not: that work may wait for other ranks.
  void begin(Device device, Stream stream, Transport& transport, bool warms_up = false);
  bool warms_up() const { return warms_up_; }

  std::byte* take(std::size_t bytes, For use) override;
  void copy(const Rows& from, const Rows& to) override { move(from, to, false); }
  void add(const Rows& from, const Rows& to) override { move(from, to, true); }
  std::uint64_t start(Transport& transport, const std::vector<Message>& sends, const std::vector<Message>& receives) override;
  void wait(Transport& transport, std::uint64_t ticket) override;
  bool direct() const override { return true; }

  enum class Lane { caller, side, second_side, third_side };  ///< the caller's stream, and side streams
  static constexpr int sides = 3;
  static std::vector<Lane> side_lanes(int count) {
    std::vector<Lane> lanes{Lane::side, Lane::second_side, Lane::third_side};
    lanes.resize(static_cast<std::size_t>(count));
    return lanes;
  }
  /// While this lives, work goes to that lane.
  class OnLane {
   public:
    OnLane(DeviceBuffers& buffers, Lane lane) : buffers_(buffers), before_(buffers.lane_) { buffers.lane_ = lane; }
    ~OnLane() { buffers_.lane_ = before_; }
    OnLane(const OnLane&) = delete;
    OnLane& operator=(const OnLane&) = delete;

   private:
    DeviceBuffers& buffers_;
    Lane before_;
  };
  /// While this lives, memory of messages is double-buffered, pass by pass: they may arrive in one
  /// buffer while the pass before still reads the other.
  class DoubleBuffered {
   public:
    DoubleBuffered(DeviceBuffers& buffers, bool wanted) : buffers_(buffers) { buffers.double_buffered_ = wanted; }
    ~DoubleBuffered() { buffers_.double_buffered_ = false; }
    DoubleBuffered(const DoubleBuffered&) = delete;
    DoubleBuffered& operator=(const DoubleBuffered&) = delete;

   private:
    DeviceBuffers& buffers_;
  };
  Lane lane() const { return lane_; }
  Stream stream() const { return lane_ == Lane::caller ? stream_ : side_of(lane_).stream(); }
  /// Scratch of one launch, shared by the launches of a lane.
  void* workspace(std::size_t bytes);
  /// Later work of these side lanes starts after the caller's work so far; later work of the caller's lane after theirs.
  void fork(const std::vector<Lane>& lanes) {
    if (made_up_) return;
    for (const Lane lane : lanes) side_of(lane).fork(device_, stream_);
  }
  void join(const std::vector<Lane>& lanes) {
    if (made_up_) return;
    for (const Lane lane : lanes) side_of(lane).join(stream_);
  }
  /// Later work of this lane starts after the other's work so far.
  void follow(Lane other) {
    if (made_up_) return;
    if (lane_ == Lane::caller) return side_of(other).join(stream_);
    side_of(lane_).fork(device_, other == Lane::caller ? stream_ : side_of(other).stream());
  }

  /// Zeros, in dense rows.
  void clear(const Rows& rows);
  /// -inf, in f64 statistics.
  void clear_sums(const Rows& sums);
  /// out and lse (no data: unwanted) from the wide sums of parts. first_head: whose sink logit is that of the first row.
  void finish(const Rows& wide, const Rows& sums, const Rows& out, const Rows& lse, const TensorView& sink, std::int64_t first_head);
  /// to = from + more[0] + more[1] ..., in the type of `to`; at most RowKernels::most_sums more.
  void convert_sum(const Rows& from, const std::vector<Rows>& more, const Rows& to);
  /// gradient: f64, one for each head.
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
  /// Messages staged in host memory, for transports that do not carry device memory.
  struct Staged {
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::pair<Message, std::size_t>> receives;  ///< where to, and from which memory
  };
  SideStream& side_of(Lane lane) { return sides_[static_cast<std::size_t>(lane) - 1]; }
  const SideStream& side_of(Lane lane) const { return sides_[static_cast<std::size_t>(lane) - 1]; }
  void move(const Rows& from, const Rows& to, bool adds);
  void release() noexcept;
  void release(Block& block) noexcept;
  void grow(Block& block, std::size_t bytes, bool for_messages);
  /// Blocks, in the order in which a pass takes them.
  struct Blocks {
    std::vector<Block> all{};
    std::size_t next = 0;
  };
  std::array<Blocks*, 4> all_blocks() { return {&work_, &messages_, &double_messages_[0], &double_messages_[1]}; }
  std::byte* next_block(Blocks& blocks, std::size_t bytes, For use);

  const bool made_up_;
  std::uintptr_t next_made_up_ = std::uintptr_t{1} << 40;
  Device device_{};
  Stream stream_{};  ///< the caller's
  Lane lane_ = Lane::caller;
  bool warms_up_ = false;
  Transport* transport_ = nullptr;
  bool has_memory_ = false;
  Blocks work_, messages_;
  std::array<Blocks, 2> double_messages_;  ///< of this pass and of the next, by turn_
  Block none_taken_;                       ///< where empty rows begin, all of them
  std::size_t turn_ = 0;
  bool double_buffered_ = false;
  std::uint64_t started_ = 0, started_before_ = 0;  ///< tickets of the first double-buffered messages of this pass and of the one before
  Block workspaces_[1 + sides]{};                   ///< of each lane
  std::array<SideStream, sides> sides_;
  std::size_t bytes_ = 0;
  std::map<std::uint64_t, Staged> staged_;
  cuda::driver::Memory minus_infinity_;  ///< in f64
};

}  // namespace foveal::dist
