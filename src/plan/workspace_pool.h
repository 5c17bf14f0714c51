#pragma once
// Scratch memory that forward() and backward() reuse between calls: one pool per thread, without locks, and one block per device and
// stream, since queued work may still be using it. A call inside another one, from the caller's executor, gets a block of its own.
#include "plan/device_memory.h"

namespace foveal::planning {

struct WorkspaceBlock;

/// At least `bytes` bytes of this thread's pool, aligned to 256, for one call; null for 0 bytes.
class PooledWorkspace {
 public:
  PooledWorkspace(DeviceMemory& memory, Device device, Stream stream, std::size_t bytes);
  ~PooledWorkspace();
  PooledWorkspace(const PooledWorkspace&) = delete;
  PooledWorkspace& operator=(const PooledWorkspace&) = delete;
  void* data() const;

 private:
  WorkspaceBlock* block_ = nullptr;
};

}  // namespace foveal::planning
