#pragma once
// The backends of this build, in order of preference.
#include "plan/choose.h"

namespace foveal::api {

const planning::Backends& backends();

}  // namespace foveal::api
