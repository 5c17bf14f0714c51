// The C header in a project of C++17, which stays one.
static_assert(__cplusplus == 201703L, "foveal has changed the standard of the project that links it");

#include "main.c"
