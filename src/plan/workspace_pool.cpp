#include "plan/workspace_pool.h"

#include <algorithm>
#include <list>

#include "base/of_thread.h"

namespace foveal::planning {

struct WorkspaceBlock {
  DeviceMemory* memory;
  Device device;
  Stream stream;
  void* data = nullptr;
  std::size_t bytes = 0;
  bool in_use = false;
};

namespace {

class Pool {
 public:
  ~Pool() {
    for (WorkspaceBlock& block : blocks_) block.memory->release(block.data);
  }

  WorkspaceBlock& take(DeviceMemory& memory, Device device, Stream stream, std::size_t bytes) {
    auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const WorkspaceBlock& b) {
      return b.memory == &memory && b.device == device && b.stream.handle == stream.handle && !b.in_use;
    });
    if (block == blocks_.end()) {
      if (blocks_.size() >= max_blocks && !blocks_.back().in_use) {  // its stream may no longer exist; release() waits for queued work
        blocks_.back().memory->release(blocks_.back().data);
        blocks_.pop_back();
      }
      blocks_.push_back({.memory = &memory, .device = device, .stream = stream});
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
    block->in_use = true;
    return *block;
  }

 private:
  static constexpr std::size_t max_blocks = 32;
  std::list<WorkspaceBlock> blocks_;  // most recently used first
};

}  // namespace

PooledWorkspace::PooledWorkspace(DeviceMemory& memory, Device device, Stream stream, std::size_t bytes) {
  if (bytes > 0) block_ = &base::of_thread<Pool>().take(memory, device, stream, bytes);
}

PooledWorkspace::~PooledWorkspace() {
  if (block_ != nullptr) block_->in_use = false;
}

void* PooledWorkspace::data() const { return block_ == nullptr ? nullptr : block_->data; }

}  // namespace foveal::planning
