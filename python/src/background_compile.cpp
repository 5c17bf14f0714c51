#include "background_compile.h"

#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "foveal/attention.h"

namespace foveal::python {
namespace {

/// Never destroyed: without finish_ahead(), threads may outlive static objects.
struct Running {
  std::mutex mutex;
  std::condition_variable ended;
  int count = 0;
  pid_t process = getpid();
};

Running& running() {
  static auto& state = *new Running;
  return state;
}

}  // namespace

void begin_ahead(std::function<void()> work) {
  Running& state = running();
  {
    const std::lock_guard lock(state.mutex);
    if (state.process != getpid() || state.count >= num_threads()) return;  // after a fork, threads of the parent do not exist
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
      } catch (...) {  // NOLINT(bugprone-empty-catch): recurs where the result is needed
      }
      end();
    }).detach();
  } catch (...) {  // no thread available: compiled when needed
    end();
  }
}

void finish_ahead() {
  Running& state = running();
  std::unique_lock lock(state.mutex);
  state.ended.wait(lock, [&state] { return state.count == 0 || state.process != getpid(); });
}

}  // namespace foveal::python
