#include "plan/workspace_pool.h"

#include <algorithm>
#include <list>

#include "base/of_thread.h"

namespace foveal::planning {
namespace {

struct Block {
  DeviceMemory* memory;
  Device device;
  Stream stream;
  void* data = nullptr;
  std::size_t bytes = 0;
};

class Pool {
 public:
  ~Pool() {
    for (Block& block : blocks_) block.memory->release(block.data);
  }

  void* take(DeviceMemory& memory, Device device, Stream stream, std::size_t bytes) {
    auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) {
      return b.memory == &memory && b.device == device && b.stream.handle == stream.handle;
    });
    if (block == blocks_.end()) {
      if (blocks_.size() >= max_blocks) {  // its stream may no longer exist; release() waits for queued work
        blocks_.back().memory->release(blocks_.back().data);
        blocks_.pop_back();
      }
      blocks_.push_back(Block{.memory = &memory, .device = device, .stream = stream});
      block = std::prev(blocks_.end());
    }
    blocks_.splice(blocks_.begin(), blocks_, block);
    if (block->bytes < bytes) {
      memory.synchronize(stream);
      memory.release(block->data);
      block->data = nullptr, block->bytes = 0;
      block->data = memory.allocate(bytes);
      block->bytes = bytes;
    }
    return block->data;
  }

 private:
  static constexpr std::size_t max_blocks = 32;
  std::list<Block> blocks_;  // most recently used first
};

}  // namespace

void* pooled_workspace(DeviceMemory& memory, Device device, Stream stream, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  return base::of_thread<Pool>().take(memory, device, stream, bytes);
}

}  // namespace foveal::planning
