#pragma once
// FOVEAL_API marks what the shared library exports; everything else is hidden.
#if defined(_WIN32)
#define FOVEAL_API
#else
#define FOVEAL_API __attribute__((visibility("default")))
#endif
