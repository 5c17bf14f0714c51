#pragma once
// The CUDA driver, loaded at run time. Only the types and entry points that foveal needs are declared here, so that no toolkit is needed
// to build and no driver to start.
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "foveal/error.h"
#include "foveal/tensor.h"

namespace foveal::cuda::driver {

using Result = int;  ///< CUresult; 0 is success
using DeviceHandle = int;
using DevicePointer = std::uint64_t;
using Context = struct ContextTag*;
using StreamHandle = struct StreamTag*;
using EventHandle = struct EventTag*;
using Library = struct LibraryTag*;
using KernelHandle = struct KernelTag*;
using Function = struct FunctionTag*;
using Graph = struct GraphTag*;
using UserObject = struct UserObjectTag*;

enum class DeviceAttribute : int {
  multiprocessor_count = 16,
  l2_cache_bytes = 38,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  max_shared_memory_per_block_optin = 97,
};

enum class FunctionAttribute : int {
  max_dynamic_shared_bytes = 8,
};

struct LaunchAttribute {
  enum Id : int { cooperative = 2, programmatic_stream_serialization = 6 };
  int id;
  int pad;
  union {
    char bytes[64];
    int flag;
  } value;
};

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  StreamHandle stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

/// CUipcMemHandle: names device memory for another process.
struct IpcHandle {
  char reserved[64];
};

/// CUtensorMap: opaque, 64-byte aligned.
struct alignas(64) TensorMap {
  std::uint64_t opaque[16];
};

/// CUDA_MEMCPY2D: an array of bytes, from device memory to device memory.
struct RowsCopy {
  struct Side {
    std::size_t first_byte = 0, first_row = 0;
    unsigned memory_type = 2;  // CU_MEMORYTYPE_DEVICE
    const void* host = nullptr;
    DevicePointer device = 0;
    void* array = nullptr;
    std::size_t row_stride = 0;
  } from{}, to{};
  std::size_t row_bytes = 0, rows = 0;
};

// X(name, symbol, parameters)
#define FOVEAL_DRIVER_FUNCTIONS(X)                                                                                      \
  X(init, cuInit, (unsigned))                                                                                           \
  X(driver_version, cuDriverGetVersion, (int*))                                                                         \
  X(error_name, cuGetErrorName, (Result, const char**))                                                                 \
  X(error_string, cuGetErrorString, (Result, const char**))                                                             \
  X(device_count, cuDeviceGetCount, (int*))                                                                             \
  X(device_get, cuDeviceGet, (DeviceHandle*, int))                                                                      \
  X(device_name, cuDeviceGetName, (char*, int, DeviceHandle))                                                           \
  X(device_attribute, cuDeviceGetAttribute, (int*, DeviceAttribute, DeviceHandle))                                      \
  X(primary_context_retain, cuDevicePrimaryCtxRetain, (Context*, DeviceHandle))                                         \
  X(context_push, cuCtxPushCurrent_v2, (Context))                                                                       \
  X(context_pop, cuCtxPopCurrent_v2, (Context*))                                                                        \
  X(context_current, cuCtxGetCurrent, (Context*))                                                                       \
  X(context_device, cuCtxGetDevice, (DeviceHandle*))                                                                    \
  X(library_load, cuLibraryLoadData, (Library*, const void*, void*, void*, unsigned, void*, void*, unsigned))           \
  X(library_unload, cuLibraryUnload, (Library))                                                                         \
  X(library_kernel, cuLibraryGetKernel, (KernelHandle*, Library, const char*))                                          \
  X(kernel_function, cuKernelGetFunction, (Function*, KernelHandle))                                                    \
  X(function_set_attribute, cuFuncSetAttribute, (Function, FunctionAttribute, int))                                     \
  X(launch, cuLaunchKernelEx, (const LaunchConfig*, Function, void**, void**))                                          \
  X(memory_alloc, cuMemAlloc_v2, (DevicePointer*, std::size_t))                                                         \
  X(memory_free, cuMemFree_v2, (DevicePointer))                                                                         \
  X(copy_to_device, cuMemcpyHtoD_v2, (DevicePointer, const void*, std::size_t))                                         \
  X(copy_to_device_async, cuMemcpyHtoDAsync_v2, (DevicePointer, const void*, std::size_t, StreamHandle))                \
  X(copy_to_host, cuMemcpyDtoH_v2, (void*, DevicePointer, std::size_t))                                                 \
  X(set_bytes, cuMemsetD8Async, (DevicePointer, unsigned char, std::size_t, StreamHandle))                              \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int*))                                                   \
  X(capture_info, cuStreamGetCaptureInfo_v2, (StreamHandle, int*, std::uint64_t*, Graph*, const void**, std::size_t*))  \
  X(user_object_create, cuUserObjectCreate, (UserObject*, void*, void (*)(void*), unsigned, unsigned))                  \
  X(user_object_release, cuUserObjectRelease, (UserObject, unsigned))                                                   \
  X(graph_retain, cuGraphRetainUserObject, (Graph, UserObject, unsigned, unsigned))                                     \
  X(stream_create, cuStreamCreate, (StreamHandle*, unsigned))                                                           \
  X(stream_destroy, cuStreamDestroy_v2, (StreamHandle))                                                                 \
  X(stream_synchronize, cuStreamSynchronize, (StreamHandle))                                                            \
  X(stream_create_with_priority, cuStreamCreateWithPriority, (StreamHandle*, unsigned, int))                            \
  X(stream_wait_event, cuStreamWaitEvent, (StreamHandle, EventHandle, unsigned))                                        \
  X(event_create, cuEventCreate, (EventHandle*, unsigned))                                                              \
  X(event_destroy, cuEventDestroy_v2, (EventHandle))                                                                    \
  X(event_record, cuEventRecord, (EventHandle, StreamHandle))                                                           \
  X(event_query, cuEventQuery, (EventHandle))                                                                           \
  X(copy_on_device, cuMemcpyDtoDAsync_v2, (DevicePointer, DevicePointer, std::size_t, StreamHandle))                    \
  X(copy_rows_on_device, cuMemcpy2DAsync_v2, (const RowsCopy*, StreamHandle))                                           \
  X(stream_write_value, cuStreamWriteValue32_v2, (StreamHandle, DevicePointer, std::uint32_t, unsigned))                \
  X(stream_wait_value, cuStreamWaitValue32_v2, (StreamHandle, DevicePointer, std::uint32_t, unsigned))                  \
  X(host_register, cuMemHostRegister_v2, (void*, std::size_t, unsigned))                                                \
  X(host_unregister, cuMemHostUnregister, (void*))                                                                      \
  X(host_device_pointer, cuMemHostGetDevicePointer_v2, (DevicePointer*, void*, unsigned))                               \
  X(ipc_handle, cuIpcGetMemHandle, (IpcHandle*, DevicePointer))                                                         \
  X(ipc_open, cuIpcOpenMemHandle_v2, (DevicePointer*, IpcHandle, unsigned))                                             \
  X(ipc_close, cuIpcCloseMemHandle, (DevicePointer))                                                                    \
  X(can_access_peer, cuDeviceCanAccessPeer, (int*, DeviceHandle, DeviceHandle))                                         \
  X(device_uuid, cuDeviceGetUuid_v2, (char*, DeviceHandle))                                                             \
  X(enable_peer_access, cuCtxEnablePeerAccess, (Context, unsigned))                                                     \
  X(tensor_map_encode_tiled, cuTensorMapEncodeTiled,                                                                    \
    (TensorMap*, int type, unsigned rank, void* address, const std::uint64_t* dims, const std::uint64_t* strides_bytes, \
     const unsigned* box, const unsigned* element_strides, int interleave, int swizzle, int l2_promotion, int oob_fill))

struct Api {
#define FOVEAL_X(name, symbol, parameters) Result(*name) parameters = nullptr;  // NOLINT(bugprone-macro-parentheses): a list of types
  FOVEAL_DRIVER_FUNCTIONS(FOVEAL_X)
#undef FOVEAL_X
};

/// Why the driver cannot be used here ("libcuda.so.1 not found: install the NVIDIA driver"), or "" when it can. Loads it on the first call.
const std::string& unavailable();

/// The loaded driver, initialised. Throws Error{device} with unavailable().
const Api& api();

/// Throws Error{device} naming the call and the driver's error text when result is not success.
void check(Result result, const char* function);

template <class Signature>
struct CheckedCall;
template <class... Parameters>
struct CheckedCall<Result(Parameters...)> {
  Result (*Api::*function)(Parameters...);
  const char* name;
  void operator()(Parameters... parameters) const { check((api().*function)(parameters...), name); }
};
/// The driver's functions, checked: call.event_record(event, stream).
struct Calls {
#define FOVEAL_X(name, symbol, parameters) CheckedCall<Result parameters> name{&Api::name, #symbol};  // NOLINT(bugprone-macro-parentheses)
  FOVEAL_DRIVER_FUNCTIONS(FOVEAL_X)
#undef FOVEAL_X
};
inline constexpr Calls call;

inline StreamHandle handle_of(Stream stream) { return static_cast<StreamHandle>(stream.handle); }
/// In stream order.
inline void fill(void* memory, unsigned char value, std::size_t bytes, Stream stream) {
  call.set_bytes(reinterpret_cast<DevicePointer>(memory), value, bytes, handle_of(stream));
}

struct DeviceFacts {
  std::string name;
  int major = 0, minor = 0;
  int multiprocessors = 0;
  std::size_t shared_bytes_per_block = 0;  ///< with opt-in
  std::size_t l2_bytes = 0;
  Context context = nullptr;  ///< the primary context, retained for the life of the process
  int capability() const { return major * 10 + minor; }
};
int device_count();  ///< 0 when there is no driver
/// Does the driver support programmatic dependent launch, also in captured graphs (CUDA 12.3 and later)?
bool has_programmatic_launches();
int current_device();  ///< of this thread's context, 0 when it has none; throws Error{device} when there is no driver
const DeviceFacts& device_facts(int device);  ///< throws Error{device} when there is no such device

/// While it lives, this thread's driver calls go to another table of functions, and devices have these facts. Recordings use it to run a
/// plan without a driver.
class Redirected {
 public:
  Redirected(const Api& api, const DeviceFacts& facts);
  Redirected(const Api& api, DeviceFacts&& facts) = delete;  // the facts must outlive it
  ~Redirected();
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;
};

/// Makes the device's primary context current for a scope. A thread that has none keeps that of device 0, as it would from its first call
/// of the CUDA runtime, which has to look for a context in every call until there is one.
class Current {
 public:
  explicit Current(int device);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  bool pops_ = false;
};

/// While it lives, this thread may load kernels and allocate although a thread captures a CUDA graph: planning is not part of the graph.
class BesideCapture {
 public:
  BesideCapture();
  ~BesideCapture();
  BesideCapture(const BesideCapture&) = delete;
  BesideCapture& operator=(const BesideCapture&) = delete;

 private:
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then the one before
};

/// A resource of a prepared computation on a device: a library of kernels, or memory. Queued work may still use it, and its last owner may
/// not be allowed to call the driver (the destructor of a graph), so it is released later, when the next computation is prepared.
class Held {
 public:
  Held() = default;
  Held(int device, Library library) : item_{{.api = &api(), .device = device, .library = library}} {}
  Held(int device, DevicePointer pointer, std::size_t bytes)
      : item_{{.api = &api(), .device = device, .pointer = pointer, .bytes = bytes}} {}
  Held(Held&& other) noexcept { *this = static_cast<Held&&>(other); }
  Held& operator=(Held&& other) noexcept;
  ~Held();
  DevicePointer pointer() const { return item_.empty() ? 0 : item_.front().pointer; }

  struct Item {
    const Api* api = nullptr;
    int device = 0;
    Library library = nullptr;
    DevicePointer pointer = 0;
    std::size_t bytes = 0;
    void release() const noexcept;
  };

 private:
  std::list<Item> item_;  ///< one, or none: a list, so that dropping it takes no memory
};

/// Releases resources without owners: once they are many, or all of them.
void give_back(bool all) noexcept;

/// allocate(), and once more when there was no memory, after give_back().
template <class Allocate>
Result with_memory(Allocate&& allocate) {
  give_back(false);
  constexpr Result out_of_memory = 2;
  const Result result = allocate();
  if (result != out_of_memory) return result;
  give_back(true);
  return allocate();
}

/// Device memory owned by a prepared computation (tables that do not change).
class Memory {
 public:
  Memory() = default;
  Memory(int device, const void* host, std::size_t bytes);
  void* data() const { return reinterpret_cast<void*>(held_.pointer()); }

 private:
  Held held_;
};

/// Is work on the stream captured into a graph?
bool is_captured(StreamHandle stream);
/// Where work on the stream is captured into a graph, `what` lives as long as the graph and its copies.
void keep_while_captured(StreamHandle stream, const std::shared_ptr<const void>& what);

}  // namespace foveal::cuda::driver
