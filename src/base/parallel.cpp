#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#else
#include <thread>
#endif

#include "base/check.h"

namespace foveal::base {
namespace {

using Task = std::function<void(std::int64_t task, int slot)>;

#if defined(_OPENMP)

void run_on_threads(int threads, std::int64_t tasks, const Task& fn) {
  if (omp_in_parallel()) {
    for (std::int64_t task = 0; task < tasks; ++task) fn(task, 0);
    return;
  }
  std::atomic<std::int64_t> next{0};
#pragma omp parallel num_threads(threads)
  {
    const int slot = omp_get_thread_num();
    for (std::int64_t task = next++; task < tasks; task = next++) fn(task, slot);
  }
}

#else

void run_on_threads(int threads, std::int64_t tasks, const Task& fn) {
  thread_local bool inside = false;
  if (inside) {
    for (std::int64_t task = 0; task < tasks; ++task) fn(task, 0);
    return;
  }
  std::atomic<std::int64_t> next{0};
  const auto work = [&](int slot) {
    inside = true;
    for (std::int64_t task = next++; task < tasks; task = next++) fn(task, slot);
    inside = false;
  };
  std::vector<std::thread> others;
  for (int slot = 1; slot < threads; ++slot) others.emplace_back(work, slot);
  work(0);
  for (std::thread& thread : others) thread.join();
}

#endif

}  // namespace

Executor default_executor(int threads) {
  FOVEAL_CHECK(threads >= 0 && threads <= 4096, "threads: ", threads, "; expected 0 (all) to 4096");
  const int concurrency = threads > 0 ? threads : num_threads();
  return {concurrency, [concurrency](std::int64_t tasks, const Task& fn) {
            run_on_threads(static_cast<int>(std::min<std::int64_t>(concurrency, tasks)), tasks, fn);
          }};
}

void run_tasks(const Executor& executor, std::int64_t tasks, const Task& fn) {
  std::mutex mutex;
  std::exception_ptr error;
  std::int64_t failed = std::numeric_limits<std::int64_t>::max();
  const auto guarded = [&](std::int64_t task, int slot) {
    try {
      fn(task, slot);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (task < failed) {
        failed = task;
        error = std::current_exception();
      }
    }
  };
  executor.run(tasks, std::cref(guarded));  // by reference: nothing is allocated
  if (error) std::rethrow_exception(error);
}

}  // namespace foveal::base
