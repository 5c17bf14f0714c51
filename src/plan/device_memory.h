#pragma once
// The memory of a device: what the workspace pool, checks and benchmarks need and nothing more.
#include <cstddef>

#include "foveal/tensor.h"

namespace foveal::planning {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// Aligned to 256; never null for bytes > 0. Throws Error(device) when there is none left.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  /// Copies that have ended when the call returns.
  virtual void to_device(void* device, const void* host, std::size_t bytes) = 0;
  virtual void to_host(void* host, const void* device, std::size_t bytes) = 0;
  virtual void synchronize(Stream stream) = 0;
};

/// Plain memory, for CPU backends.
DeviceMemory& host_memory();

}  // namespace foveal::planning
