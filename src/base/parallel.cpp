#include "base/parallel.h"

#include <algorithm>
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

}  // namespace

Executor default_executor(int threads) {
  FOVEAL_CHECK(threads >= 0 && threads <= max_threads, "threads: ", threads, "; expected 0 (all) to ", max_threads);
  const int concurrency = threads > 0 ? threads : num_threads();
  return {concurrency, [concurrency](std::int64_t tasks, const Task& fn) {
            run_on_threads(static_cast<int>(std::min<std::int64_t>(concurrency, tasks)), tasks, fn);
          }};
}

void run_tasks(const Executor& executor, std::int64_t tasks, const Task& fn) {
  std::mutex mutex;
  std::exception_ptr error;
  std::int64_t failed = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> done{0};
  const auto guarded = [&](std::int64_t task, int slot) {
    try {
      FOVEAL_CHECK(task >= 0 && task < tasks, "options.executor: calls task ", task, " of ", tasks);
      FOVEAL_CHECK(slot >= 0 && slot < executor.concurrency, "options.executor: calls in slot ", slot,
                   "; expected one below the concurrency, ", executor.concurrency);
      const FloatScope floats(plain_floats);
      fn(task, slot);
      ++done;
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (task < failed) {
        failed = task;
        error = std::current_exception();
      }
    }
  };
  executor.run(tasks, std::cref(guarded));  // by reference: no allocation
  if (error) std::rethrow_exception(error);
  FOVEAL_CHECK(done == tasks, "options.executor: returned after ", done.load(), " of ", tasks, " tasks; expected all, each once");
}

}  // namespace foveal::base
