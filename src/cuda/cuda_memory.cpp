#include "cuda/cuda_memory.h"

#include <map>
#include <mutex>

#include "cuda/jit/driver.h"

namespace foveal::cuda {
namespace {

class CudaMemory : public planning::DeviceMemory {
 public:
  explicit CudaMemory(int device) : device_(device) {}

  void* allocate(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    const driver::BesideCapture beside;
    const driver::Current current(device_);
    driver::DevicePointer pointer = 0;
    driver::check(driver::with_memory([&] { return driver::api().memory_alloc(&pointer, bytes); }), "cuMemAlloc");
    return reinterpret_cast<void*>(pointer);
  }
  void release(void* memory) noexcept override {
    if (!memory) return;
    try {
      const driver::BesideCapture beside;
      const driver::Current current(device_);
      driver::api().memory_free(reinterpret_cast<driver::DevicePointer>(memory));
    } catch (...) {  // the device is gone, and all that was on it
    }
  }
  void to_device(void* device, const void* host, std::size_t bytes) override {
    const driver::Current current(device_);
    driver::call.copy_to_device(reinterpret_cast<driver::DevicePointer>(device), host, bytes);
    // What lay in pageable memory may still be on its way, and streams of the caller's may not wait for the default one.
    driver::call.stream_synchronize(nullptr);
  }
  void to_host(void* host, const void* device, std::size_t bytes) override {
    const driver::Current current(device_);
    driver::call.copy_to_host(host, reinterpret_cast<driver::DevicePointer>(device), bytes);
  }
  void synchronize(Stream stream) override {
    const driver::Current current(device_);
    driver::call.stream_synchronize(driver::handle_of(stream));
  }

 private:
  int device_;
};

}  // namespace

planning::DeviceMemory& cuda_memory(int device) {
  static std::mutex mutex;
  static std::map<int, CudaMemory> memories;
  std::lock_guard lock(mutex);
  return memories.try_emplace(device, device).first->second;
}

}  // namespace foveal::cuda
