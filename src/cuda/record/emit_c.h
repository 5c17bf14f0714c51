#pragma once
// Recorded passes as C: a header and a source file that any C or C++ compiler takes. At run time they need only the driver (libcuda).
#include <string>
#include <vector>

#include "cuda/record/recording.h"

namespace foveal::cuda {

struct EmittedC {
  std::string header, source;  ///< NAME.h, NAME.c
};

/// One pass of a program with its recordings: one for each device that the program supports, in the same order in every pass.
struct EmittedPass {
  std::string name;  ///< "forward": NAME_forward() runs it
  std::vector<Recording> recordings;
};

/// `name` prefixes everything: NAME_load(), NAME_unload(), struct NAME; for each pass NAME_PASS(), struct NAME_PASS_buffers,
/// NAME_PASS_WORKSPACE_BYTES and the shape it was made for. Devices with more multiprocessors come first within an arch.
/// Throws invalid_argument for names that are not identifiers or occur twice.
EmittedC emit_c(const std::vector<EmittedPass>& passes, const std::string& name);

}  // namespace foveal::cuda
