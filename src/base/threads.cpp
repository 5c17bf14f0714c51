// How many threads this process may use: by the affinity mask, and by the CPU quotas of its control group and all groups above.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/parallel.h"

namespace foveal {
namespace base {
namespace {

int affinity_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

/// CPUs allowed by one control group directory, or infinity.
double group_quota(const std::string& directory) {
  double quota = INFINITY, period = 0;
  if (std::ifstream v2(directory + "/cpu.max"); v2 >> quota >> period && quota > 0 && period > 0)
    return quota / period;  // "max" is no number
  std::ifstream v1_quota(directory + "/cpu.cfs_quota_us"), v1_period(directory + "/cpu.cfs_period_us");
  if (v1_quota >> quota && v1_period >> period && quota > 0 && period > 0) return quota / period;
  return INFINITY;
}

std::atomic<int> chosen_threads{0};

/// FOVEAL_NUM_THREADS, or the first number of OMP_NUM_THREADS (one for each level of nesting); 0
/// if neither is set. Malformed ones are ignored.
int environment_threads() {
  for (const char* name : {"FOVEAL_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    int threads = 0;
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), threads);
    if (error == std::errc{} && (*end == '\0' || *end == ',') && threads >= 1) return std::min(threads, max_threads);
  }
  return 0;
}

}  // namespace

double cpu_quota(const std::string& groups_file, const std::string& mounted) {
  double quota = INFINITY;
  std::ifstream groups(groups_file);
  for (std::string line; std::getline(groups, line);) {  // id:controllers:path
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    const std::string root = mounted + (controllers.empty() ? "" : "/cpu");
    std::string path = line.substr(second + 1);
    for (;;) {  // the group itself, then every parent; a container may see its own group as the root
      quota = std::min(quota, group_quota(root + (path == "/" ? "" : path)));
      if (path.find('/') == std::string::npos || path == "/") break;
      path.resize(path.rfind('/'));
    }
  }
  return quota;
}

int available_threads() {
  static const int count = [] {
    const double quota = cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    const int allowed = affinity_count();
    return std::isfinite(quota) ? std::clamp(static_cast<int>(std::ceil(quota)), 1, allowed) : allowed;
  }();
  return count;
}

namespace {

int default_threads() {
  static const int count = [] {
    const int requested = environment_threads();
    return requested > 0 ? requested : available_threads();
  }();
  return count;
}

}  // namespace
}  // namespace base

void set_num_threads(int threads) {
  FOVEAL_CHECK(threads >= 0 && threads <= base::max_threads, "threads: ", threads, "; expected 0 (all) to ", base::max_threads);
  base::chosen_threads = threads;
}

int num_threads() {
  const int chosen = base::chosen_threads;
  return chosen > 0 ? chosen : base::default_threads();
}

}  // namespace foveal
