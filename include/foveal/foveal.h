#pragma once
// All of the C++ interface except context parallelism (foveal/dist.h).
#if __cplusplus < 202002L
#error "foveal's C++ headers need C++20 (-std=c++20; in CMake, CMAKE_CXX_STANDARD 20); foveal/foveal_c.h is for C and for older C++"
#endif

#include "foveal/attention.h"
#include "foveal/error.h"
#include "foveal/masks.h"
#include "foveal/part.h"
#include "foveal/score.h"
#include "foveal/tensor.h"
