#pragma once
// A recorded plan as C: a header and a source that any C compiler takes, which need the driver (libcuda) at run time and nothing else.
#include <string>

#include "cuda/recording.h"

namespace foveal::cuda {

struct EmittedC {
  std::string header, source;  ///< NAME.h, NAME.c
};

/// `name` prefixes everything: NAME_load(), NAME_run(), NAME_unload(), struct NAME, struct NAME_buffers, NAME_WORKSPACE_BYTES.
EmittedC emit_c(const Recording& recording, const std::string& name);

}  // namespace foveal::cuda
