#pragma once
// A stream beside the caller's: launches there fill multiprocessors that the last CTAs of launches on the caller's leave idle, or, where they go
// first, take each multiprocessor that a CTA of these leaves.
#include "cuda/jit/driver.h"
#include "foveal/attention.h"

namespace foveal::dist {

class SideStream {
 public:
  explicit SideStream(bool goes_first) : goes_first_(goes_first) {}
  ~SideStream() { destroy(); }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  /// What comes here begins when all that is on the caller's stream now has ended.
  void fork(Device device, Stream from) {
    const cuda::driver::Current current(device.index);
    if (!(device == device_)) destroy(), create(device);
    record_and_wait(from.handle, stream_.handle);
  }
  /// What comes on the caller's stream begins when all that is here has ended.
  void join(Stream to) {
    const cuda::driver::Current current(device_.index);
    record_and_wait(stream_.handle, to.handle);
  }
  Stream stream() const { return stream_; }

 private:
  void create(Device device) {
    constexpr unsigned non_blocking = 1, no_timing = 2;
    cuda::driver::StreamHandle stream = nullptr;
    cuda::driver::check(cuda::driver::api().stream_create_with_priority(&stream, non_blocking, goes_first_ ? -1 : 0),
                        "cuStreamCreateWithPriority");
    stream_ = {stream}, device_ = device;
    cuda::driver::check(cuda::driver::api().event_create(&event_, no_timing), "cuEventCreate");
  }
  void destroy() noexcept {
    if (event_ != nullptr) cuda::driver::api().event_destroy(event_);
    if (stream_.handle != nullptr) cuda::driver::api().stream_destroy(static_cast<cuda::driver::StreamHandle>(stream_.handle));
    event_ = nullptr, stream_ = {}, device_ = {};
  }
  void record_and_wait(void* from, void* to) const {
    cuda::driver::check(cuda::driver::api().event_record(event_, static_cast<cuda::driver::StreamHandle>(from)), "cuEventRecord");
    cuda::driver::check(cuda::driver::api().stream_wait_event(static_cast<cuda::driver::StreamHandle>(to), event_, 0), "cuStreamWaitEvent");
  }

  bool goes_first_;
  Device device_{};
  Stream stream_{};
  cuda::driver::EventHandle event_ = nullptr;
};

}  // namespace foveal::dist
