// libcuda.so.1 of two H100 that have memory, the host's, and no processors: kernels are loaded and launched, and do nothing. Programs that are
// linked with it find it where they look for the driver, so that everything above the driver runs as it would. Any call can be made to fail.
#include "mock_driver.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

using namespace foveal::cuda::driver;

namespace foveal::mock {
namespace {

/// Not a mutex: tests count those that the library locks.
class SpinLock {
 public:
  void lock() {
    while (taken_.test_and_set(std::memory_order_acquire)) continue;
  }
  void unlock() { taken_.clear(std::memory_order_release); }

 private:
  std::atomic_flag taken_ = ATOMIC_FLAG_INIT;
};

/// Not operator new: tests count what that gives, and let it fail.
template <class T>
struct Malloc {
  using value_type = T;
  Malloc() = default;
  template <class U>
  explicit(false) Malloc(const Malloc<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(std::malloc(n * sizeof(T))); }
  void deallocate(T* memory, std::size_t) { std::free(memory); }
  bool operator==(const Malloc&) const = default;
};
template <class Key, class Value>
using Map = std::map<Key, Value, std::less<Key>, Malloc<std::pair<const Key, Value>>>;

SpinLock mutex;  // of everything below
Map<std::string_view, long> calls;
struct Failing {
  std::string name;
  long nth = 0;
  int code = 0;
  Lasts lasts = Lasts::once;
  bool context_is_lost = false;
} failing;
State state;
std::atomic<OnLaunch> on_launch = nullptr;
std::atomic<OnCompilation> on_compilation = nullptr;
long programs = 0;
Map<DevicePointer, std::size_t> memory;

struct CapturedGraph {
  Map<void*, void (*)(void*)> held;
};
CapturedGraph* captured = nullptr;
struct Object {
  void* what;
  void (*destroy)(void*);
};

bool is_allocated(DevicePointer at) {
  const std::lock_guard lock(mutex);
  const auto above = memory.upper_bound(at);
  return above != memory.begin() && at - std::prev(above)->first < std::prev(above)->second;
}

}  // namespace

void call_for_launches(OnLaunch call) { on_launch = call; }
void call_for_compilations(OnCompilation call) { on_compilation = call; }
void in_compilation() {
  if (const OnCompilation call = on_compilation) call();
}
void fail(const char* name, long nth, int code, Lasts lasts) {
  const std::lock_guard lock(mutex);
  failing = {name, nth, code, lasts, false};
}
void work() {
  const std::lock_guard lock(mutex);
  failing = {};
}
std::map<std::string, long> count_calls() {
  const std::lock_guard lock(mutex);
  std::map<std::string, long> counted(calls.begin(), calls.end());
  calls.clear();
  return counted;
}
State device() {
  const std::lock_guard lock(mutex);
  return state;
}
long compiler_programs() {
  const std::lock_guard lock(mutex);
  return programs;
}
void count_compiler_program(int change) {
  const std::lock_guard lock(mutex);
  programs += change;
}
void* begin_capture() {
  const std::lock_guard lock(mutex);
  return captured = new CapturedGraph;
}
void end_capture() {
  const std::lock_guard lock(mutex);
  captured = nullptr;
}
void destroy_graph(void* graph) {
  const auto* own = static_cast<CapturedGraph*>(graph);
  for (const auto& [what, destroy] : own->held) destroy(what);
  delete own;
}
int outcome(const char* name) {
  const std::lock_guard lock(mutex);
  ++calls[name];
  if (failing.context_is_lost && std::strncmp(name, "cu", 2) == 0) return failing.code;
  if (failing.name != name || --failing.nth > 0 || (failing.nth < 0 && failing.lasts != Lasts::on)) return 0;
  failing.context_is_lost = failing.lasts == Lasts::for_all;
  return failing.code;
}

}  // namespace foveal::mock

using namespace foveal::mock;

namespace {

constexpr Result success = 0, invalid_value = 1, out_of_memory = 2, invalid_image = 200, invalid_context = 201, not_found = 500;
int object;
constexpr int devices = 2;
int primary_contexts[devices];
/// Contexts of a thread.
struct Stack {
  Context contexts[16] = {};
  std::size_t depth = 0;
};
thread_local Stack stack;
thread_local int capture_mode = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL

/// A handle that nobody looks behind.
template <class Handle>
Handle some() {
  return reinterpret_cast<Handle>(&object);
}

}  // namespace

// Leaves the function where the test asked for it.
#define MAY_FAIL \
  if (const int failed = outcome(__func__); failed != success) return failed

extern "C" {

Result cuInit(unsigned) {
  MAY_FAIL;
  return success;
}
/// NVRTC asks for it where there is a driver.
Result cuGetExportTable(const void** table, const void*) { return *table = nullptr, not_found; }
Result cuDriverGetVersion(int* version) {
  MAY_FAIL;
  return *version = 13000, success;
}
Result cuGetErrorName(Result, const char** text) { return *text = "CUDA_ERROR_MOCKED", success; }
Result cuGetErrorString(Result, const char** text) { return *text = "as the test asked for", success; }
Result cuDeviceGetCount(int* count) {
  MAY_FAIL;
  return *count = devices, success;
}
Result cuDeviceGet(DeviceHandle* device, int index) {
  MAY_FAIL;
  return *device = index, index >= 0 && index < devices ? success : invalid_value;
}
Result cuDeviceGetName(char* name, int size, DeviceHandle) {
  MAY_FAIL;
  return std::snprintf(name, static_cast<std::size_t>(size), "mock"), success;
}
Result cuDeviceGetAttribute(int* value, DeviceAttribute attribute, DeviceHandle) {
  MAY_FAIL;
  switch (attribute) {
    case DeviceAttribute::compute_capability_major:
      return *value = 9, success;
    case DeviceAttribute::compute_capability_minor:
      return *value = 0, success;
    case DeviceAttribute::multiprocessor_count:
      return *value = 132, success;
    case DeviceAttribute::max_shared_memory_per_block_optin:
      return *value = 232448, success;
    case DeviceAttribute::l2_cache_bytes:
      return *value = 50 << 20, success;
  }
  return invalid_value;
}
Result cuDevicePrimaryCtxRetain(Context* context, DeviceHandle device) {
  MAY_FAIL;
  return *context = reinterpret_cast<Context>(&primary_contexts[device]), success;
}
Result cuCtxPushCurrent_v2(Context context) {
  MAY_FAIL;
  if (stack.depth == std::size(stack.contexts)) return invalid_value;
  return stack.contexts[stack.depth++] = context, success;
}
Result cuCtxPopCurrent_v2(Context* context) {
  MAY_FAIL;
  if (stack.depth == 0) return invalid_value;
  return *context = stack.contexts[--stack.depth], success;
}
Result cuCtxGetCurrent(Context* context) {
  MAY_FAIL;
  return *context = stack.depth > 0 ? stack.contexts[stack.depth - 1] : nullptr, success;
}
Result cuCtxGetDevice(DeviceHandle* device) {
  MAY_FAIL;
  if (stack.depth == 0) return invalid_context;
  const auto* current = reinterpret_cast<const int*>(stack.contexts[stack.depth - 1]);
  return *device = static_cast<DeviceHandle>(current - primary_contexts), success;
}

Result cuLibraryLoadData(Library* library, const void* image, void*, void*, unsigned, void*, void*, unsigned) {
  MAY_FAIL;
  if (image == nullptr) return invalid_image;
  const std::lock_guard lock(mutex);
  ++state.libraries;
  return *library = static_cast<Library>(std::malloc(1)), success;
}
Result cuLibraryUnload(Library library) {
  MAY_FAIL;
  const std::lock_guard lock(mutex);
  --state.libraries;
  return std::free(library), success;
}
Result cuLibraryGetKernel(KernelHandle* kernel, Library library, const char*) {
  MAY_FAIL;
  return *kernel = reinterpret_cast<KernelHandle>(library), success;
}
Result cuKernelGetFunction(Function* function, KernelHandle kernel) {
  MAY_FAIL;
  return *function = reinterpret_cast<Function>(kernel), success;
}
Result cuFuncSetAttribute(Function, FunctionAttribute, int) {
  MAY_FAIL;
  return success;
}
Result cuLaunchKernelEx(const LaunchConfig* config, Function function, void** arguments, void**) {
  MAY_FAIL;
  if (const OnLaunch call = on_launch) call(*config, arguments[0], *static_cast<const std::size_t*>(arguments[1]));
  const std::lock_guard lock(mutex);
  *reinterpret_cast<volatile char*>(function) = 1;  // its library is still there
  return ++state.launches, success;
}

Result cuMemAlloc_v2(DevicePointer* pointer, std::size_t bytes) {
  MAY_FAIL;
  void* made = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (made == nullptr) return out_of_memory;
  *pointer = reinterpret_cast<DevicePointer>(made);
  const std::lock_guard lock(mutex);
  memory[*pointer] = bytes;
  return ++state.allocations, state.bytes += bytes, success;
}
Result cuMemFree_v2(DevicePointer pointer) {
  MAY_FAIL;
  const std::lock_guard lock(mutex);
  const auto found = memory.find(pointer);
  if (found == memory.end()) return invalid_value;
  --state.allocations, state.bytes -= found->second;
  memory.erase(found);
  return std::free(reinterpret_cast<void*>(pointer)), success;
}
Result cuMemcpyHtoD_v2(DevicePointer to, const void* from, std::size_t bytes) {
  MAY_FAIL;
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), success;
}
Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, std::size_t bytes, StreamHandle) {
  MAY_FAIL;
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), success;
}
Result cuMemcpyDtoH_v2(void* to, DevicePointer from, std::size_t bytes) {
  MAY_FAIL;
  return std::memcpy(to, reinterpret_cast<const void*>(from), bytes), success;
}
Result cuMemsetD8Async(DevicePointer, unsigned char, std::size_t, StreamHandle) {
  MAY_FAIL;
  return success;
}

Result cuThreadExchangeStreamCaptureMode(int* mode) {
  MAY_FAIL;
  return std::swap(*mode, capture_mode), success;
}
Result cuStreamGetCaptureInfo_v2(StreamHandle, int* status, std::uint64_t*, Graph* graph, const void**, std::size_t*) {
  MAY_FAIL;
  const std::lock_guard lock(mutex);
  *status = captured != nullptr ? 1 : 0;
  return *graph = reinterpret_cast<Graph>(captured), success;
}
Result cuUserObjectCreate(UserObject* object, void* what, void (*destroy)(void*), unsigned, unsigned) {
  MAY_FAIL;
  return *object = reinterpret_cast<UserObject>(new (std::malloc(sizeof(Object))) Object{what, destroy}), success;
}
Result cuUserObjectRelease(UserObject object, unsigned) {
  MAY_FAIL;
  auto* own = reinterpret_cast<Object*>(object);
  own->destroy(own->what);
  return std::free(own), success;
}
Result cuGraphRetainUserObject(Graph graph, UserObject object, unsigned, unsigned) {
  MAY_FAIL;
  auto* own = reinterpret_cast<Object*>(object);
  reinterpret_cast<CapturedGraph*>(graph)->held[own->what] = own->destroy;
  return std::free(own), success;
}

Result cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, std::size_t bytes, StreamHandle) {
  MAY_FAIL;
  if (!is_allocated(to)) return invalid_value;
  return std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes), success;
}
Result cuMemcpy2DAsync_v2(const RowsCopy* copy, StreamHandle) {
  MAY_FAIL;
  for (std::size_t row = 0; row < copy->rows; ++row)
    std::memcpy(reinterpret_cast<std::byte*>(copy->to.device) + row * copy->to.row_stride,
                reinterpret_cast<const std::byte*>(copy->from.device) + row * copy->from.row_stride, copy->row_bytes);
  return success;
}
Result cuMemHostRegister_v2(void*, std::size_t, unsigned) {
  MAY_FAIL;
  return success;
}
Result cuMemHostUnregister(void*) {
  MAY_FAIL;
  return success;
}
Result cuMemHostGetDevicePointer_v2(DevicePointer* pointer, void* host, unsigned) {
  MAY_FAIL;
  return *pointer = reinterpret_cast<DevicePointer>(host), success;
}
Result cuStreamWriteValue32_v2(StreamHandle, DevicePointer to, std::uint32_t value, unsigned) {
  MAY_FAIL;
  if (!is_allocated(to)) return invalid_value;
  return reinterpret_cast<std::atomic<std::uint32_t>*>(to)->store(value), success;
}
/// Streams are never behind: what they wait for, their thread waits for.
Result cuStreamWaitValue32_v2(StreamHandle, DevicePointer at, std::uint32_t value, unsigned) {
  MAY_FAIL;
  while (static_cast<std::int32_t>(reinterpret_cast<std::atomic<std::uint32_t>*>(at)->load() - value) < 0) std::this_thread::yield();
  return success;
}
Result cuIpcGetMemHandle(IpcHandle* handle, DevicePointer pointer) {
  MAY_FAIL;
  return std::memcpy(handle, &pointer, sizeof pointer), success;
}
Result cuIpcOpenMemHandle_v2(DevicePointer*, IpcHandle, unsigned) {
  MAY_FAIL;
  return invalid_value;  // memory of another process: there is none
}
Result cuIpcCloseMemHandle(DevicePointer) {
  MAY_FAIL;
  return success;
}
Result cuDeviceCanAccessPeer(int* can, DeviceHandle, DeviceHandle) {
  MAY_FAIL;
  return *can = 1, success;
}
Result cuDeviceGetUuid_v2(char* uuid, DeviceHandle device) {
  MAY_FAIL;
  return std::memset(uuid, device, 16), success;
}
Result cuCtxEnablePeerAccess(Context, unsigned) {
  MAY_FAIL;
  return success;
}

Result cuStreamCreate(StreamHandle* stream, unsigned) {
  MAY_FAIL;
  return *stream = some<StreamHandle>(), success;
}
Result cuStreamCreateWithPriority(StreamHandle* stream, unsigned, int) {
  MAY_FAIL;
  return *stream = some<StreamHandle>(), success;
}
Result cuStreamDestroy_v2(StreamHandle) {
  MAY_FAIL;
  return success;
}
Result cuStreamSynchronize(StreamHandle) {
  MAY_FAIL;
  return success;
}
Result cuStreamWaitEvent(StreamHandle, EventHandle, unsigned) {
  MAY_FAIL;
  return success;
}
Result cuEventCreate(EventHandle* event, unsigned) {
  MAY_FAIL;
  return *event = some<EventHandle>(), success;
}
Result cuEventDestroy_v2(EventHandle) {
  MAY_FAIL;
  return success;
}
Result cuEventRecord(EventHandle, StreamHandle) {
  MAY_FAIL;
  return success;
}
Result cuEventQuery(EventHandle) {
  MAY_FAIL;
  return success;
}
Result cuTensorMapEncodeTiled(TensorMap* map, int, unsigned, void* address, const std::uint64_t*, const std::uint64_t*, const unsigned*,
                              const unsigned*, int, int, int, int) {
  MAY_FAIL;
  std::memset(map, 0, sizeof *map);
  return std::memcpy(map, &address, sizeof address), success;
}
}
