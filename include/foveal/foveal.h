#pragma once
// All of the C++ interface except context parallelism (foveal/dist.h).
#include "foveal/attention.h"
#include "foveal/error.h"
#include "foveal/masks.h"
#include "foveal/score.h"
#include "foveal/tensor.h"
