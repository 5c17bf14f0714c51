#include "dist/device_rows.h"

#include <limits>

#include "cuda/cuda_memory.h"
#include "cuda/jit/driver.h"

namespace foveal::dist {
namespace {

cuda::DeviceRows device_rows(const Rows& rows) {
  if (rows.data == nullptr) return {};
  const auto size = static_cast<std::int64_t>(size_of(rows.dtype));
  return {rows.data, rows.dtype, rows.batch_stride / size, rows.token_stride / size, rows.head_stride / size, rows.dim_stride / size};
}
cuda::RowSizes sizes_of(const Rows& rows) { return {rows.batch, rows.tokens, rows.heads, rows.dim}; }

cuda::DeviceRows logits(const TensorView& sink, std::int64_t first_head) {
  if (!sink.present()) return {};
  auto* first = static_cast<std::byte*>(sink.data) + first_head * sink.strides[0] * static_cast<std::int64_t>(size_of(sink.dtype));
  return {first, sink.dtype, 0, 0, sink.strides[0], 1};
}

}  // namespace

DeviceBuffers::~DeviceBuffers() {
  if (!made_up_) release();
}

void DeviceBuffers::release() noexcept {
  if (transport_ != nullptr && has_memory_) {
    try {
      cuda::cuda_memory(device_.index).synchronize(stream_);  // which may still wait for messages
      for (const SideStream& side : sides_)
        if (side.stream().handle != nullptr) cuda::cuda_memory(device_.index).synchronize(side.stream());
    } catch (...) {  // the device is gone
    }
  }
  for (Blocks* blocks : all_blocks()) {
    for (Block& block : blocks->all) release(block);
    *blocks = {};
  }
  for (Block& workspace : workspaces_) release(workspace);
  release(none_taken_);
  has_memory_ = false;
}

void DeviceBuffers::release(Block& block) noexcept {
  if (block.of_transport) {
    transport_->release(block.memory);
  } else {
    cuda::cuda_memory(device_.index).release(block.memory);
  }
  block = {};
}

void DeviceBuffers::grow(Block& block, std::size_t bytes, bool for_messages) {
  if (block.bytes >= bytes) return;
  if (made_up_) {
    constexpr std::uintptr_t page = 1 << 16;
    block.memory = reinterpret_cast<void*>(next_made_up_), block.bytes = bytes;
    next_made_up_ += (bytes + page) / page * page;
    return;
  }
  planning::DeviceMemory& memory = cuda::cuda_memory(device_.index);
  if (block.memory != nullptr) memory.synchronize(stream_);  // which may still use it
  release(block);
  if (for_messages) block.memory = transport_->allocate(bytes);
  block.of_transport = block.memory != nullptr;
  if (!block.of_transport) block.memory = memory.allocate(bytes);
  block.bytes = bytes;
  has_memory_ = true;
}

void* DeviceBuffers::workspace(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  Block& workspace = workspaces_[static_cast<int>(lane_)];
  grow(workspace, bytes, false);
  return workspace.memory;
}

void DeviceBuffers::begin(Device device, Stream stream, Transport& transport, bool warms_up) {
  warms_up_ = warms_up;
  if (!(device == device_)) {
    release();
    minus_infinity_ = {};
    device_ = device;
  } else if (stream.handle != stream_.handle && has_memory_) {
    cuda::cuda_memory(device_.index).synchronize(stream_);  // which may still use the memory
  }
  transport_ = &transport, stream_ = stream, bytes_ = 0;
  for (Blocks* blocks : all_blocks()) blocks->next = 0;
  if (!warms_up) turn_ = 1 - turn_, started_before_ = started_, started_ = 0;
  staged_.clear();
}

std::byte* DeviceBuffers::next_block(Blocks& blocks, std::size_t bytes, For use) {
  constexpr std::size_t least = 256;
  bytes_ += bytes;
  if (blocks.next == blocks.all.size()) blocks.all.emplace_back();
  Block& block = blocks.all[blocks.next++];
  grow(block, std::max(bytes, least), use == For::messages);
  return static_cast<std::byte*>(block.memory);
}

std::byte* DeviceBuffers::take(std::size_t bytes, For use) {
  if (bytes == 0) {
    grow(none_taken_, 1, false);
    return static_cast<std::byte*>(none_taken_.memory);
  }
  if (use == For::work) return next_block(work_, bytes, use);
  if (!double_buffered_) return next_block(messages_, bytes, use);
  next_block(double_messages_[1 - turn_], bytes, use);  // the next pass takes it
  return next_block(double_messages_[turn_], bytes, use);
}

void DeviceBuffers::move(const Rows& from, const Rows& to, bool adds) {
  cuda::row_kernels(device_.index).move(device_rows(from), device_rows(to), sizes_of(from), adds, {stream(), warms_up_});
}

void DeviceBuffers::convert_sum(const Rows& from, const std::vector<Rows>& more, const Rows& to) {
  std::vector<cuda::DeviceRows> all;
  all.reserve(more.size());
  for (const Rows& rows : more) all.push_back(device_rows(rows));
  cuda::row_kernels(device_.index).sum(device_rows(from), all, device_rows(to), sizes_of(from), {stream(), warms_up_});
}

std::uint64_t DeviceBuffers::start(Transport& transport, const std::vector<Message>& sends, const std::vector<Message>& receives) {
  if (warms_up_) return 0;
  if (double_buffered_) {
    std::vector<Message> early = receives;
    for (Message& m : early) m.free_since = started_before_;
    const std::uint64_t ticket = transport.start_on(stream(), sends, early);
    if (started_ == 0) started_ = ticket;
    return ticket;
  }
  if (transport.carries_device_memory()) return transport.start_on(stream(), sends, receives);
  planning::DeviceMemory& memory = cuda::cuda_memory(device_.index);
  memory.synchronize(stream());
  Staged staged;
  std::vector<Message> host_sends, host_receives;
  for (const Message& m : sends) {
    std::vector<std::byte>& bytes = staged.memory.emplace_back(m.bytes);
    if (m.bytes > 0) memory.to_host(bytes.data(), m.data, m.bytes);
    host_sends.push_back({m.peer, bytes.data(), m.bytes});
  }
  for (const Message& m : receives) {
    staged.receives.emplace_back(m, staged.memory.size());
    host_receives.push_back({m.peer, staged.memory.emplace_back(m.bytes).data(), m.bytes});
  }
  const std::uint64_t ticket = transport.start(host_sends, host_receives);
  staged_.emplace(ticket, std::move(staged));
  return ticket;
}

void DeviceBuffers::wait(Transport& transport, std::uint64_t ticket) {
  if (warms_up_) return;
  if (transport.carries_device_memory()) return transport.wait_on(stream(), ticket);
  transport.wait(ticket);
  const auto found = staged_.find(ticket);
  planning::DeviceMemory& memory = cuda::cuda_memory(device_.index);
  for (const auto& [message, index] : found->second.receives)
    if (message.bytes > 0) memory.to_device(message.data, found->second.memory[index].data(), message.bytes);
  memory.synchronize({});  // copies of pageable memory may still be under way
  staged_.erase(found);
}

void DeviceBuffers::clear(const Rows& rows) {
  if (rows.tokens <= 0 || warms_up_) return;
  const cuda::driver::Current current(device_.index);
  for (std::int64_t b = 0; b < rows.batch; ++b)
    cuda::driver::fill(rows.at(b, 0, 0), 0, static_cast<std::size_t>(rows.tokens * rows.token_stride), stream());
}

void DeviceBuffers::clear_sums(const Rows& sums) {
  static constexpr double none = -std::numeric_limits<double>::infinity();
  if (minus_infinity_.data() == nullptr) minus_infinity_ = cuda::driver::Memory(device_.index, &none, sizeof none);
  Rows from = sums;
  from.data = static_cast<std::byte*>(minus_infinity_.data()),
  from.batch_stride = from.token_stride = from.head_stride = from.dim_stride = 0;
  move(from, sums, false);
}

void DeviceBuffers::finish(const Rows& wide, const Rows& sums, const Rows& out, const Rows& lse, const TensorView& sink,
                           std::int64_t first_head) {
  cuda::row_kernels(device_.index)
      .finish(device_rows(wide), device_rows(sums), device_rows(out), device_rows(lse), logits(sink, first_head), sizes_of(wide),
              {stream(), warms_up_});
}

void DeviceBuffers::sink_gradient(const Rows& out, const Rows& dout, const Rows& lse, const Rows& dlse, const TensorView& sink,
                                  std::int64_t first_head, double* gradient) {
  cuda::row_kernels(device_.index)
      .sink_gradient(device_rows(out), device_rows(dout), device_rows(lse), device_rows(dlse), logits(sink, first_head), gradient,
                     sizes_of(out), {stream(), warms_up_});
}

}  // namespace foveal::dist
