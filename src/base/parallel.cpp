#include "base/parallel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#include <pthread.h>
#endif

#include "base/check.h"
#include "base/float_mode.h"
#include "base/random.h"

namespace foveal::base {
namespace {

using Task = std::function<void(std::int64_t task, int slot)>;

void run_inline(std::int64_t tasks, const Task& fn) {
  for (std::int64_t task = 0; task < tasks; ++task) fn(task, 0);
}

/// Threads that live for one call only, so that a process may fork between calls.
void run_on_own_threads(int threads, std::int64_t tasks, const Task& fn) {
  thread_local bool inside = false;
  if (inside) return run_inline(tasks, fn);
  std::atomic<std::int64_t> next{0};
  const auto work = [&](int slot) {
    inside = true;
    for (std::int64_t task = next++; task < tasks; task = next++) fn(task, slot);
    inside = false;
  };
  std::vector<std::thread> others;
  try {
    for (int slot = 1; slot < threads; ++slot) others.emplace_back(work, slot);
  } catch (const std::exception&) {  // out of threads or memory: fewer threads do the work
  }
  work(0);
  for (std::thread& thread : others) thread.join();
}

#if defined(_OPENMP)

/// OpenMP keeps its threads, which a forked child does not have: a parallel region would deadlock there.
std::atomic<bool> in_child{false};
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { in_child = true; });

void run_on_threads(int threads, std::int64_t tasks, const Task& fn) {
  if (in_child) return run_on_own_threads(threads, tasks, fn);
  if (omp_in_parallel()) return run_inline(tasks, fn);
  std::atomic<std::int64_t> next{0};
#pragma omp parallel num_threads(threads)
  {
    const int slot = omp_get_thread_num();
    for (std::int64_t task = next++; task < tasks; task = next++) fn(task, slot);
  }
}

#else

void run_on_threads(int threads, std::int64_t tasks, const Task& fn) { run_on_own_threads(threads, tasks, fn); }

#endif

/// What default_executor() runs.
struct OwnThreads {
  int concurrency;
  void operator()(std::int64_t tasks, const Task& fn) const {
    run_on_threads(static_cast<int>(std::min<std::int64_t>(concurrency, tasks)), tasks, fn);
  }
};

/// The exception of the lowest failing task.
class FirstError {
 public:
  void keep(std::int64_t task) {
    const std::lock_guard lock(mutex_);
    if (task >= task_) return;
    task_ = task;
    error_ = std::current_exception();
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  std::int64_t task_ = std::numeric_limits<std::int64_t>::max();
};

/// What an executor of the caller does with its tasks.
class Watch {
 public:
  Watch(int concurrency, std::int64_t tasks) : concurrency_(concurrency), tasks_(tasks) {}
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  /// Tasks may still run where the executor threw or did not wait, and their memory ends with the call.
  ~Watch() {
    while (ended_ != begun_) std::this_thread::yield();
  }

  /// fn(task, slot), unless it is none of the tasks or the slot is not free.
  template <class Fn>
  void run(std::int64_t task, int slot, FirstError& error, const Fn& fn) {
    ++begun_;
    try {
      FOVEAL_CHECK(task >= 0 && task < tasks_, "options.executor: calls task ", task, " of ", tasks_);
      FOVEAL_CHECK(slot >= 0 && slot < concurrency_, "options.executor: calls in slot ", slot, "; expected one below the concurrency, ",
                   concurrency_);
      std::atomic<std::uint64_t>& slots = busy_[static_cast<std::size_t>(slot) / 64];
      const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
      FOVEAL_CHECK((slots.fetch_or(bit) & bit) == 0, "options.executor: calls two tasks at once in slot ", slot,
                   "; expected slots of their own");
      fn(task, slot);
      slots &= ~bit;
      marks_ += mark_of(task);
    } catch (...) {
      error.keep(task);
    }
    ++ended_;
  }

  void check() const {
    FOVEAL_CHECK(ended_ == tasks_, "options.executor: returned after ", ended_.load(), " of ", tasks_, " tasks; expected all, each once");
    std::uint64_t expected = 0;
    for (std::int64_t task = 0; task < tasks_; ++task) expected += mark_of(task);
    FOVEAL_CHECK(marks_ == expected, "options.executor: called some of ", tasks_, " tasks again and left out others; expected each once");
  }

 private:
  /// Their sums are equal for the same tasks, and practically only for those.
  static std::uint64_t mark_of(std::int64_t task) { return Random(static_cast<std::uint64_t>(task)).bits(); }

  const int concurrency_;
  const std::int64_t tasks_;
  std::atomic<std::int64_t> begun_{0}, ended_{0};
  std::atomic<std::uint64_t> marks_{0};
  std::array<std::atomic<std::uint64_t>, max_threads / 64> busy_{};
};

}  // namespace

Executor default_executor(int threads) {
  FOVEAL_CHECK(threads >= 0 && threads <= max_threads, "threads: ", threads, "; expected 0 (all) to ", max_threads);
  const int concurrency = threads > 0 ? threads : num_threads();
  return {concurrency, OwnThreads{concurrency}};
}

void run_tasks(const Executor& executor, std::int64_t tasks, const Task& fn) {
  FirstError error;
  const auto guarded = [&](std::int64_t task, int slot) {
    try {
      const FloatScope floats(plain_floats);
      fn(task, slot);
    } catch (...) {
      error.keep(task);
    }
  };
  if (executor.run.target<OwnThreads>() != nullptr) {
    executor.run(tasks, std::cref(guarded));  // by reference: no allocation
    return error.rethrow();
  }
  Watch watch(executor.concurrency, tasks);
  const auto watched = [&](std::int64_t task, int slot) { watch.run(task, slot, error, guarded); };
  executor.run(tasks, std::cref(watched));
  error.rethrow();
  watch.check();
}

}  // namespace foveal::base
