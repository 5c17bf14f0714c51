#pragma once
// A second stream, whose launches fill multiprocessors left idle in the last wave of launches on the caller's stream. With priority, they
// take each multiprocessor as soon as a CTA of the caller's stream leaves it.
#include "cuda/jit/driver.h"
#include "foveal/attention.h"

namespace foveal::dist {

class SideStream {
 public:
  explicit SideStream(bool goes_first) : goes_first_(goes_first) {}
  ~SideStream() { destroy(); }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  /// Later work here starts after the caller's work so far.
  void fork(Device device, Stream from) {
    const cuda::driver::Current current(device.index);
    if (!(device == device_)) destroy(), create(device);
    record_and_wait(from.handle, stream_.handle);
  }
  /// Later work of the caller starts after all work here.
  void join(Stream to) {
    const cuda::driver::Current current(device_.index);
    record_and_wait(stream_.handle, to.handle);
  }
  Stream stream() const { return stream_; }

 private:
  void create(Device device) {
    constexpr unsigned non_blocking = 1, no_timing = 2;
    cuda::driver::StreamHandle stream = nullptr;
    cuda::driver::call.stream_create_with_priority(&stream, non_blocking, goes_first_ ? -1 : 0);
    stream_ = {stream}, device_ = device;
    cuda::driver::call.event_create(&event_, no_timing);
  }
  void destroy() noexcept {
    if (event_ != nullptr) cuda::driver::api().event_destroy(event_);
    if (stream_.handle != nullptr) cuda::driver::api().stream_destroy(cuda::driver::handle_of(stream_));
    event_ = nullptr, stream_ = {}, device_ = {};
  }
  void record_and_wait(void* from, void* to) const {
    cuda::driver::call.event_record(event_, static_cast<cuda::driver::StreamHandle>(from));
    cuda::driver::call.stream_wait_event(static_cast<cuda::driver::StreamHandle>(to), event_, 0);
  }

  bool goes_first_;
  Device device_{};
  Stream stream_{};
  cuda::driver::EventHandle event_ = nullptr;
};

}  // namespace foveal::dist
