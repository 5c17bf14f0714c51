#include "plan/workspace_pool.h"

#include <algorithm>
#include <vector>

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
    if (block == blocks_.end()) block = blocks_.insert(block, Block{.memory = &memory, .device = device, .stream = stream});
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
  std::vector<Block> blocks_;
};

}  // namespace

void* pooled_workspace(DeviceMemory& memory, Device device, Stream stream, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  thread_local Pool pool;
  return pool.take(memory, device, stream, bytes);
}

}  // namespace foveal::planning
