// NVRTC that compiles nothing, at once. Any call can be made to fail. A library of its own, as the real one is used beside the mock driver, too.
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "mock_driver.h"

using foveal::mock::count_compiler_program;
using foveal::mock::outcome;

#define MAY_FAIL \
  if (const int failed = outcome(__func__); failed != 0) return failed

extern "C" {

const char* nvrtcGetErrorString(int) { return "as the test asked for"; }
int nvrtcVersion(int* major, int* minor) {
  MAY_FAIL;
  return *major = 13, *minor = 0, 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
  MAY_FAIL;
  return *count = 2, 0;
}
int nvrtcGetSupportedArchs(int* archs) {
  MAY_FAIL;
  return archs[0] = 80, archs[1] = 90, 0;
}
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*, const char* const*) {
  MAY_FAIL;
  count_compiler_program(1);
  return *program = std::malloc(1), 0;
}
int nvrtcDestroyProgram(void** program) {
  MAY_FAIL;
  count_compiler_program(-1);
  return std::free(*program), 0;
}
int nvrtcCompileProgram(void*, int, const char* const*) {
  MAY_FAIL;
  foveal::mock::in_compilation();
  return 0;
}
int nvrtcGetProgramLogSize(void*, std::size_t* size) {
  MAY_FAIL;
  return *size = sizeof "nothing", 0;
}
int nvrtcGetProgramLog(void*, char* log) {
  MAY_FAIL;
  return std::strcpy(log, "nothing"), 0;
}
int nvrtcGetCUBINSize(void*, std::size_t* size) {
  MAY_FAIL;
  return *size = 20000, 0;
}
int nvrtcGetCUBIN(void*, char* bytes) {
  MAY_FAIL;
  return std::memset(bytes, 1, 20000), 0;
}
int nvrtcGetPTXSize(void*, std::size_t* size) {
  MAY_FAIL;
  return *size = sizeof "ptx", 0;
}
int nvrtcGetPTX(void*, char* bytes) {
  MAY_FAIL;
  return std::strcpy(bytes, "ptx"), 0;
}
}
