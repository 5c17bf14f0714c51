#pragma once
// Runs tasks on threads, which take them in order from a shared counter. Results must not depend on which thread runs a task.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "foveal/attention.h"

namespace foveal::base {

constexpr int max_threads = 4096;

/// Threads this process may use: affinity mask and cgroup quota, at least 1.
int available_threads();

/// CPUs that the quotas of control groups allow, or infinity: the lowest of the groups of /proc/self/cgroup, which are mounted
/// there, and of all above them. Of both versions.
double cpu_quota(const std::string& groups_file, const std::string& mounted);

/// The executor for `threads` threads (0 = num_threads()): OpenMP when built with it, std::thread otherwise and in a process that was
/// forked; nested in a parallel region of the caller it runs serially. concurrency 1 runs inline.
Executor default_executor(int threads);

/// Runs the tasks on the executor; the exception of the lowest failing task is rethrown after all have ended.
void run_tasks(const Executor& executor, std::int64_t tasks, const std::function<void(std::int64_t task, int slot)>& fn);

/// fn(task, slot) for task in [0, tasks). An exception thrown by a task is rethrown here after all have ended.
template <class Fn>
void parallel_for(const Executor& executor, std::int64_t tasks, Fn&& fn) {
  if (tasks <= 0) return;
  if (executor.concurrency <= 1 || tasks == 1) {
    for (std::int64_t task = 0; task < tasks; ++task) fn(task, 0);
    return;
  }
  run_tasks(executor, tasks, [&fn](std::int64_t task, int slot) { fn(task, slot); });
}

}  // namespace foveal::base
