#pragma once
// The timing loop of the benches of single kernels.
#include <algorithm>
#include <vector>

#include "peaks.h"

namespace foveal::micro {

/// Seconds of CPU time.
struct Times {
  double median, best;  ///< best: the first tenth, for the clock of CPU time itself jumps by a few microseconds
};

/// Of calls for about `budget` seconds, three at least, after one that warms up.
template <class Fn>
Times times_of(double budget, const Fn& fn) {
  std::vector<double> times;
  fn();
  for (double spent = 0; spent < budget || times.size() < 3;) {
    const double start = thread_seconds();
    fn();
    times.push_back(thread_seconds() - start);
    spent += times.back();
  }
  std::ranges::sort(times);
  return {times[times.size() / 2], times[times.size() / 10]};
}

}  // namespace foveal::micro
