#pragma once
// Time limits of transports.
#include "base/check.h"

namespace foveal::dist {

/// NaN and infinity are none, nor are so many seconds that a clock cannot count their nanoseconds.
inline void check_time_limit(const char* function, double seconds) {
  FOVEAL_CHECK(seconds > 0 && seconds <= 1e9, function, ": time_limit: ", seconds, "; expected seconds, more than 0 and at most 1e9");
}

}  // namespace foveal::dist
