// libcuda.so.1 without a device: memory is the host's, kernels do nothing. Programs that are linked with it find it where they look for
// the driver, so that everything above the driver runs as it would: contexts, modules, launches.
#include "mock_driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

using namespace foveal::cuda::driver;
using foveal::test::MockDevice;

namespace foveal::test {
MockDevice mock_device;
OnLaunch mock_on_launch = nullptr;
long mock_launches = 0;
}  // namespace foveal::test

namespace {

constexpr Result success = 0, invalid_value = 1, out_of_memory = 2, not_found = 500;
int context_object;
thread_local Context current = nullptr;
thread_local int capture_mode = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL

Context the_context() { return reinterpret_cast<Context>(&context_object); }

}  // namespace

extern "C" {

Result cuInit(unsigned) { return success; }
/// NVRTC asks for it where there is a driver.
Result cuGetExportTable(const void** table, const void*) { return *table = nullptr, not_found; }
Result cuDriverGetVersion(int* version) { return *version = 12080, success; }
Result cuGetErrorName(Result, const char** text) { return *text = "MOCK_ERROR", success; }
Result cuGetErrorString(Result, const char** text) { return *text = "an error of the mock driver", success; }
Result cuDeviceGetCount(int* count) { return *count = 1, success; }
Result cuDeviceGet(DeviceHandle* device, int index) { return *device = index, index == 0 ? success : invalid_value; }
Result cuDeviceGetName(char* name, int size, DeviceHandle) { return std::snprintf(name, static_cast<std::size_t>(size), "mock"), success; }
Result cuDeviceGetAttribute(int* value, DeviceAttribute attribute, DeviceHandle) {
  const MockDevice& device = foveal::test::mock_device;
  switch (attribute) {
    case DeviceAttribute::compute_capability_major:
      return *value = device.major, success;
    case DeviceAttribute::compute_capability_minor:
      return *value = device.minor, success;
    case DeviceAttribute::multiprocessor_count:
      return *value = device.multiprocessors, success;
    case DeviceAttribute::max_shared_memory_per_block_optin:
      return *value = device.shared_bytes_per_block, success;
    case DeviceAttribute::max_shared_memory_per_block:
      return *value = 49152, success;
    case DeviceAttribute::l2_cache_bytes:
      return *value = device.l2_bytes, success;
  }
  return invalid_value;
}
Result cuDevicePrimaryCtxRetain(Context* context, DeviceHandle) { return *context = the_context(), success; }
Result cuCtxPushCurrent_v2(Context context) { return current = context, success; }
Result cuCtxPopCurrent_v2(Context* context) {
  *context = current;
  current = nullptr;
  return success;
}
Result cuCtxGetCurrent(Context* context) { return *context = current, success; }
Result cuCtxGetDevice(DeviceHandle* device) { return *device = 0, success; }
Result cuLibraryLoadData(Library* library, const void* image, void*, void*, unsigned, void*, void*, unsigned) {
  *library = static_cast<Library>(const_cast<void*>(image));
  return success;
}
Result cuLibraryUnload(Library) { return success; }
Result cuLibraryGetKernel(KernelHandle* kernel, Library library, const char*) {
  return *kernel = reinterpret_cast<KernelHandle>(library), success;
}
Result cuKernelGetFunction(Function* function, KernelHandle kernel) { return *function = reinterpret_cast<Function>(kernel), success; }
Result cuFuncGetAttribute(int* value, FunctionAttribute, Function) { return *value = 0, success; }
Result cuFuncSetAttribute(Function, FunctionAttribute, int) { return success; }
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function, int, std::size_t) { return *blocks = 1, success; }
Result cuLaunchKernelEx(const LaunchConfig* config, Function, void** arguments, void**) {
  ++foveal::test::mock_launches;
  if (foveal::test::mock_on_launch != nullptr)
    foveal::test::mock_on_launch(*config, arguments[0], *static_cast<const std::size_t*>(arguments[1]));
  return success;
}
Result cuMemAlloc_v2(DevicePointer* pointer, std::size_t bytes) {
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  *pointer = reinterpret_cast<DevicePointer>(memory);
  return memory != nullptr ? success : out_of_memory;
}
Result cuMemFree_v2(DevicePointer pointer) { return std::free(reinterpret_cast<void*>(pointer)), success; }
Result cuMemcpyHtoD_v2(DevicePointer to, const void* from, std::size_t bytes) {
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), success;
}
Result cuMemcpyDtoH_v2(void* to, DevicePointer from, std::size_t bytes) {
  return std::memcpy(to, reinterpret_cast<const void*>(from), bytes), success;
}
Result cuMemsetD8Async(DevicePointer, unsigned char, std::size_t, StreamHandle) { return success; }
Result cuStreamGetCaptureInfo_v2(StreamHandle, int* status, std::uint64_t*, Graph*, const void**, std::size_t*) {
  return *status = 0, success;  // nothing is captured
}
Result cuUserObjectCreate(UserObject*, void*, void (*)(void*), unsigned, unsigned) { return invalid_value; }
Result cuUserObjectRelease(UserObject, unsigned) { return invalid_value; }
Result cuGraphRetainUserObject(Graph, UserObject, unsigned, unsigned) { return invalid_value; }
Result cuStreamCreate(StreamHandle* stream, unsigned) { return *stream = nullptr, success; }
Result cuStreamCreateWithPriority(StreamHandle* stream, unsigned, int) { return *stream = nullptr, success; }
Result cuStreamDestroy_v2(StreamHandle) { return success; }
Result cuStreamSynchronize(StreamHandle) { return success; }
Result cuThreadExchangeStreamCaptureMode(int* mode) { return std::swap(*mode, capture_mode), success; }
Result cuStreamWaitEvent(StreamHandle, EventHandle, unsigned) { return success; }
Result cuEventCreate(EventHandle* event, unsigned) { return *event = nullptr, success; }
Result cuEventDestroy_v2(EventHandle) { return success; }
Result cuEventRecord(EventHandle, StreamHandle) { return success; }
Result cuEventQuery(EventHandle) { return success; }
Result cuTensorMapEncodeTiled(TensorMap* map, int, unsigned, void* address, const std::uint64_t*, const std::uint64_t*, const unsigned*,
                              const unsigned*, int, int, int, int) {
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &address, sizeof address);
  return success;
}
}
