#pragma once
// Everything: #include <foveal/foveal.h>
#include "foveal/attention.h"
#include "foveal/error.h"
#include "foveal/masks.h"
#include "foveal/score.h"
#include "foveal/tensor.h"
