// A driver of one device that has memory and no processors: kernels are loaded and launched, and do nothing. Any call can be made to fail.
#include "mock/driver.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace {

std::mutex mutex;
std::map<std::string, long> calls;
std::string failing;
long failing_after = 0;
int failing_code = 0;
bool failing_for_good = false;

struct Memory {
  std::size_t bytes;
};
std::map<std::uint64_t, Memory> memory;
long libraries = 0;
mock::State state;

/// The result of a call: what was asked for, or 0.
int outcome(const char* name) {
  const std::lock_guard lock(mutex);
  ++calls[name];
  if (state.context_is_lost && std::strncmp(name, "cuGetError", 10) != 0) return failing_code;
  if (failing != name || --failing_after != 0) return 0;
  state.context_is_lost = failing_for_good;
  return failing_code;
}

struct Graph {
  std::map<void*, void (*)(void*)> held;
};
struct UserObject {
  void* what;
  void (*destroy)(void*);
};

}  // namespace

namespace mock {

void fail(const char* name, long nth, int code, bool for_good) {
  const std::lock_guard lock(mutex);
  failing = name, failing_after = nth, failing_code = code, failing_for_good = for_good;
}
void work() {
  const std::lock_guard lock(mutex);
  failing.clear();
  state.context_is_lost = false;
}
std::map<std::string, long> count_calls() {
  const std::lock_guard lock(mutex);
  return std::exchange(calls, {});
}
State device() {
  const std::lock_guard lock(mutex);
  State now = state;
  now.libraries = libraries;
  now.allocations = static_cast<long>(memory.size());
  for (const auto& [address, held] : memory) now.bytes += held.bytes;
  return now;
}
void* begin_capture() { return state.graph = new Graph; }
void end_capture() { state.graph = nullptr; }
void destroy_graph(void* graph) {
  auto* own = static_cast<Graph*>(graph);
  for (const auto& [what, destroy] : own->held) destroy(what);
  delete own;
}

}  // namespace mock

#define ENTRY(name, ...) extern "C" __attribute__((visibility("default"))) int name(__VA_ARGS__)
#define MAY_FAIL \
  if (const int failed = outcome(__func__); failed) return failed;

ENTRY(cuInit, unsigned) { MAY_FAIL return 0; }
ENTRY(cuDriverGetVersion, int* version) {
  MAY_FAIL* version = 13000;
  return 0;
}
ENTRY(cuGetErrorName, int, const char** text) { return *text = "CUDA_ERROR_MOCKED", 0; }
ENTRY(cuGetErrorString, int, const char** text) { return *text = "as the test asked for", 0; }
ENTRY(cuDeviceGetCount, int* count) {
  MAY_FAIL* count = 1;
  return 0;
}
ENTRY(cuDeviceGet, int* device, int index) {
  MAY_FAIL* device = index;
  return 0;
}
ENTRY(cuDeviceGetName, char* name, int size, int) {
  MAY_FAIL std::strncpy(name, "mock", static_cast<std::size_t>(size));
  return 0;
}
ENTRY(cuDeviceGetAttribute, int* value, int attribute, int) {
  MAY_FAIL
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : attribute == 97 ? 232448 : attribute == 38 ? 50 << 20 : 0;
  return 0;
}
namespace {
thread_local void* current_context = nullptr;
int context;
}  // namespace
ENTRY(cuDevicePrimaryCtxRetain, void** out, int) {
  MAY_FAIL* out = &context;
  return 0;
}
ENTRY(cuCtxPushCurrent_v2, void* pushed) {
  MAY_FAIL current_context = pushed;
  return 0;
}
ENTRY(cuCtxPopCurrent_v2, void** popped) {
  MAY_FAIL* popped = current_context;
  return 0;
}
ENTRY(cuCtxGetCurrent, void** out) {
  MAY_FAIL* out = current_context;
  return 0;
}
ENTRY(cuCtxGetDevice, int* device) {
  MAY_FAIL* device = 0;
  return 0;
}
ENTRY(cuLibraryLoadData, void** library, const void* image, void*, void*, unsigned, void*, void*, unsigned) {
  MAY_FAIL
  if (image == nullptr) return 200;
  const std::lock_guard lock(mutex);
  ++libraries;
  *library = std::malloc(1);
  return 0;
}
ENTRY(cuLibraryUnload, void* library) {
  MAY_FAIL
  const std::lock_guard lock(mutex);
  --libraries;
  std::free(library);
  return 0;
}
ENTRY(cuLibraryGetKernel, void** kernel, void* library, const char*) {
  MAY_FAIL* kernel = library;
  return 0;
}
ENTRY(cuKernelGetFunction, void** function, void* kernel) {
  MAY_FAIL* function = kernel;
  return 0;
}
ENTRY(cuFuncGetAttribute, int* value, int, void*) {
  MAY_FAIL* value = 0;
  return 0;
}
ENTRY(cuFuncSetAttribute, void*, int, int) { MAY_FAIL return 0; }
ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor, int* blocks, void*, int, std::size_t) {
  MAY_FAIL* blocks = 1;
  return 0;
}
ENTRY(cuLaunchKernelEx, const void*, void* function, void**, void**) {
  MAY_FAIL
  *static_cast<volatile char*>(function) = 1;  // its library is still there
  const std::lock_guard lock(mutex);
  ++state.launches;
  return 0;
}
ENTRY(cuMemAlloc_v2, std::uint64_t* pointer, std::size_t bytes) {
  MAY_FAIL
  void* made = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (made == nullptr) return 2;
  *pointer = reinterpret_cast<std::uint64_t>(made);
  const std::lock_guard lock(mutex);
  memory[*pointer] = {bytes};
  return 0;
}
ENTRY(cuMemFree_v2, std::uint64_t pointer) {
  MAY_FAIL
  const std::lock_guard lock(mutex);
  if (memory.erase(pointer) == 0) return 1;
  std::free(reinterpret_cast<void*>(pointer));
  return 0;
}
ENTRY(cuMemcpyHtoD_v2, std::uint64_t to, const void* from, std::size_t bytes) {
  MAY_FAIL std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
ENTRY(cuMemcpyDtoH_v2, void* to, std::uint64_t from, std::size_t bytes) {
  MAY_FAIL std::memcpy(to, reinterpret_cast<void*>(from), bytes);
  return 0;
}
ENTRY(cuMemsetD8Async, std::uint64_t, unsigned char, std::size_t, void*) { MAY_FAIL return 0; }
ENTRY(cuThreadExchangeStreamCaptureMode, int*) { MAY_FAIL return 0; }
ENTRY(cuStreamGetCaptureInfo_v2, void*, int* status, std::uint64_t*, void** graph, const void**, std::size_t*) {
  MAY_FAIL
  *status = state.graph != nullptr;
  *graph = state.graph;
  return 0;
}
ENTRY(cuUserObjectCreate, void** object, void* what, void (*destroy)(void*), unsigned, unsigned) {
  MAY_FAIL
  *object = new UserObject{what, destroy};
  return 0;
}
ENTRY(cuGraphRetainUserObject, void* graph, void* object, unsigned, unsigned) {
  const int failed = outcome(__func__);
  auto* own = static_cast<UserObject*>(object);
  if (!failed) static_cast<Graph*>(graph)->held[own->what] = own->destroy;
  if (!failed) delete own;
  return failed;
}
ENTRY(cuUserObjectRelease, void* object, unsigned) {
  MAY_FAIL
  auto* own = static_cast<UserObject*>(object);
  own->destroy(own->what);
  delete own;
  return 0;
}
ENTRY(cuStreamCreate, void** stream, unsigned) {
  MAY_FAIL* stream = &context;
  return 0;
}
ENTRY(cuStreamCreateWithPriority, void** stream, unsigned, int) {
  MAY_FAIL* stream = &context;
  return 0;
}
ENTRY(cuStreamWaitEvent, void*, void*, unsigned) { MAY_FAIL return 0; }
ENTRY(cuEventCreate, void** event, unsigned) {
  MAY_FAIL* event = &context;
  return 0;
}
ENTRY(cuEventDestroy_v2, void*) { MAY_FAIL return 0; }
ENTRY(cuEventRecord, void*, void*) { MAY_FAIL return 0; }
ENTRY(cuEventQuery, void*) { MAY_FAIL return 0; }
ENTRY(cuStreamDestroy_v2, void*) { MAY_FAIL return 0; }
ENTRY(cuStreamSynchronize, void*) { MAY_FAIL return 0; }
ENTRY(cuTensorMapEncodeTiled, void* map, int, unsigned, void*, const void*, const void*, const void*, const void*, int, int, int, int) {
  MAY_FAIL
  std::memset(map, 0, 128);
  return 0;
}

// ---- NVRTC: compiles nothing, at once ----

#undef ENTRY
#define ENTRY(result, name, ...) extern "C" __attribute__((visibility("default"))) result name(__VA_ARGS__)
ENTRY(const char*, nvrtcGetErrorString, int) { return "as the test asked for"; }
ENTRY(int, nvrtcVersion, int* major, int* minor) {
  MAY_FAIL *major = 13, *minor = 0;
  return 0;
}
ENTRY(int, nvrtcGetNumSupportedArchs, int* count) {
  MAY_FAIL* count = 2;
  return 0;
}
ENTRY(int, nvrtcGetSupportedArchs, int* archs) {
  MAY_FAIL archs[0] = 80, archs[1] = 90;
  return 0;
}
ENTRY(int, nvrtcCreateProgram, void** program, const char*, const char*, int, const char* const*, const char* const*) {
  MAY_FAIL
  *program = std::malloc(1);
  const std::lock_guard lock(mutex);
  ++state.compiler_programs;
  return 0;
}
ENTRY(int, nvrtcDestroyProgram, void** program) {
  MAY_FAIL
  std::free(*program);
  const std::lock_guard lock(mutex);
  --state.compiler_programs;
  return 0;
}
ENTRY(int, nvrtcCompileProgram, void*, int, const char* const*) { MAY_FAIL return 0; }
ENTRY(int, nvrtcGetProgramLogSize, void*, std::size_t* size) {
  MAY_FAIL* size = 8;
  return 0;
}
ENTRY(int, nvrtcGetProgramLog, void*, char* log) {
  MAY_FAIL std::strcpy(log, "nothing");
  return 0;
}
ENTRY(int, nvrtcGetCUBINSize, void*, std::size_t* size) {
  MAY_FAIL* size = 20000;
  return 0;
}
ENTRY(int, nvrtcGetCUBIN, void*, char* bytes) {
  MAY_FAIL std::memset(bytes, 1, 20000);
  return 0;
}
ENTRY(int, nvrtcGetPTXSize, void*, std::size_t* size) {
  MAY_FAIL* size = 4;
  return 0;
}
ENTRY(int, nvrtcGetPTX, void*, char* bytes) {
  MAY_FAIL std::strcpy(bytes, "ptx");
  return 0;
}
