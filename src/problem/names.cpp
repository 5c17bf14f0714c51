#include "base/enum_name.h"
#include "foveal/attention.h"

namespace foveal {

const char* to_string(Pass pass) { return base::enum_name(pass, {"forward", "backward"}); }

const char* to_string(Determinism determinism) { return base::enum_name(determinism, {"fast", "reproducible"}); }

const char* to_string(BackwardStrategy strategy) { return base::enum_name(strategy, {"automatic", "fused", "split", "two_scan"}); }

}  // namespace foveal
