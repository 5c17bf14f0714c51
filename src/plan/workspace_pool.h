#pragma once
// Scratch memory that forward() and backward() reuse between calls: one pool per thread, without locks, and one block per device and
// stream, since queued work may still be using it.
#include "plan/device_memory.h"

namespace foveal::planning {

/// At least `bytes` bytes, aligned to 256, valid until this thread's next call for the same memory and stream.
void* pooled_workspace(DeviceMemory& memory, Device device, Stream stream, std::size_t bytes);

}  // namespace foveal::planning
