#include "plan/device_memory.h"

#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/divide.h"

namespace foveal::planning {
namespace {

class HostMemory : public DeviceMemory {
 public:
  void* allocate(std::size_t bytes) override {
    constexpr std::size_t alignment = 256;
    void* memory = std::aligned_alloc(alignment, base::round_up(bytes, alignment));
    if (memory == nullptr && bytes > 0) base::fail(ErrorCode::device, "memory: cannot allocate ", bytes, " bytes");
    return memory;
  }
  void release(void* memory) noexcept override { std::free(memory); }
  void to_device(void* device, const void* host, std::size_t bytes) override { std::memcpy(device, host, bytes); }
  void to_host(void* host, const void* device, std::size_t bytes) override { std::memcpy(host, device, bytes); }
  void synchronize(Stream) override {}
};

}  // namespace

DeviceMemory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace foveal::planning
