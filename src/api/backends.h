#pragma once
// The backends of this build, in the order in which they are asked.
#include "plan/choose.h"

namespace foveal::api {

const planning::Backends& backends();

}  // namespace foveal::api
