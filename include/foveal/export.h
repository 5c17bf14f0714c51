#pragma once
// FOVEAL_API marks the symbols that the shared library exports; all others have hidden visibility.
#if defined(_WIN32)
#define FOVEAL_API
#else
#define FOVEAL_API __attribute__((visibility("default")))
#endif
