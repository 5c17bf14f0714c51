#include "ahead.h"

#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "foveal/attention.h"

namespace foveal::python {
namespace {

/// Never destroyed: threads may end after static objects do, where finish_ahead() was not called.
struct UnderWay {
  std::mutex mutex;
  std::condition_variable ended;
  int count = 0;
  pid_t process = getpid();
};

UnderWay& under_way() {
  static auto& state = *new UnderWay;
  return state;
}

}  // namespace

void begin_ahead(std::function<void()> work) {
  UnderWay& state = under_way();
  {
    const std::lock_guard lock(state.mutex);
    if (state.process != getpid() || state.count >= num_threads()) return;  // threads of a parent process do not exist here
    ++state.count;
  }
  const auto end = [&state] {
    const std::lock_guard lock(state.mutex);
    --state.count;
    state.ended.notify_all();
  };
  try {
    std::thread([work = std::move(work), end] {
      try {
        work();
      } catch (...) {  // NOLINT(bugprone-empty-catch): said again when the result is asked for
      }
      end();
    }).detach();
  } catch (...) {  // no thread to be had: the work is done when it is asked for
    end();
  }
}

void finish_ahead() {
  UnderWay& state = under_way();
  std::unique_lock lock(state.mutex);
  state.ended.wait(lock, [&state] { return state.count == 0 || state.process != getpid(); });
}

}  // namespace foveal::python
