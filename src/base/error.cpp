#include "foveal/error.h"

#include "base/enum_name.h"

namespace foveal {

const char* to_string(ErrorCode code) {
  return base::enum_name(code, {"ok", "invalid_argument", "unsupported", "compile_failed", "device", "communication"});
}

}  // namespace foveal
