#pragma once
// The memory of a device, for the workspace pool, checks and benchmarks.
#include <cstddef>

#include "foveal/tensor.h"

namespace foveal::planning {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// Aligned to 256 bytes; never null for bytes > 0. Throws Error(device) if out of memory.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  /// Synchronous copies.
  virtual void to_device(void* device, const void* host, std::size_t bytes) = 0;
  virtual void to_host(void* host, const void* device, std::size_t bytes) = 0;
  virtual void synchronize(Stream stream) = 0;
};

/// For CPU backends.
DeviceMemory& host_memory();

}  // namespace foveal::planning
