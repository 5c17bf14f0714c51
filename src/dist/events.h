#pragma once
// A pool of events of a device, for several threads.
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

  /// The device must be current.
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
    cuda::driver::call.event_create(&event, no_timing);
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
