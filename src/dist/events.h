#pragma once
// Events of a device that are used again and again, by several threads.
#include <mutex>
#include <vector>

#include "cuda/jit/driver.h"

namespace foveal::dist {

class Events {
 public:
  Events() = default;
  ~Events() { clear(); }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  /// One that nobody uses. The device is current.
  cuda::driver::EventHandle take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        const cuda::driver::EventHandle event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    constexpr unsigned no_timing = 2;
    cuda::driver::EventHandle event = nullptr;
    cuda::driver::check(cuda::driver::api().event_create(&event, no_timing), "cuEventCreate");
    return event;
  }
  void give(cuda::driver::EventHandle event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }
  void clear() noexcept {
    for (const cuda::driver::EventHandle event : free_) cuda::driver::api().event_destroy(event);
    free_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<cuda::driver::EventHandle> free_;
};

}  // namespace foveal::dist
