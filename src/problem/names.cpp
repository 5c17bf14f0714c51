#include "foveal/attention.h"

namespace foveal {

const char* to_string(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }

const char* to_string(Determinism determinism) { return determinism == Determinism::fast ? "fast" : "reproducible"; }

const char* to_string(BackwardStrategy strategy) {
  switch (strategy) {
    case BackwardStrategy::automatic:
      return "automatic";
    case BackwardStrategy::fused:
      return "fused";
    case BackwardStrategy::split:
      return "split";
    case BackwardStrategy::two_scan:
      return "two_scan";
  }
  return "unknown";
}

}  // namespace foveal
