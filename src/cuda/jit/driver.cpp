#include "cuda/jit/driver.h"

#include <dlfcn.h>

#include <memory>
#include <mutex>
#include <vector>

#include "base/check.h"

namespace foveal::cuda::driver {
namespace {

struct Loaded {
  Api api;
  std::string unavailable;
};

Loaded load() {
  Loaded loaded;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    loaded.unavailable = "no driver: libcuda.so.1 not found; install the NVIDIA driver (12.0 or later)";
    return loaded;
  }
  const char* missing = nullptr;
// NOLINTBEGIN(bugprone-macro-parentheses): a list of types
#define FOVEAL_X(name, symbol, parameters)                                           \
  loaded.api.name = reinterpret_cast<Result(*) parameters>(dlsym(library, #symbol)); \
  if (!loaded.api.name) missing = #symbol;
  // NOLINTEND(bugprone-macro-parentheses)
  FOVEAL_DRIVER_FUNCTIONS(FOVEAL_X)
#undef FOVEAL_X
  if (missing) {
    loaded.unavailable = base::join("the driver is too old: libcuda.so.1 has no ", missing, "; install a driver for CUDA 12.0 or later");
    return loaded;
  }
  const Result result = loaded.api.init(0);
  const char* text = nullptr;
  if (result != 0) {
    loaded.api.error_string(result, &text);
    loaded.unavailable = base::join("the driver does not start: cuInit: ", text ? text : "unknown error");
  }
  return loaded;
}

const Loaded& loaded() {
  static const Loaded value = load();
  return value;
}

struct Redirection {
  const Api* api = nullptr;
  const DeviceFacts* facts = nullptr;
};
thread_local Redirection redirection;

}  // namespace

Redirected::Redirected(const Api& api, const DeviceFacts& facts) { redirection = {&api, &facts}; }
Redirected::~Redirected() { redirection = {}; }

const std::string& unavailable() { return loaded().unavailable; }

const Api& api() {
  if (redirection.api) return *redirection.api;
  if (!loaded().unavailable.empty()) base::fail(ErrorCode::device, loaded().unavailable);
  return loaded().api;
}

void check(Result result, const char* call) {
  if (result == 0) return;
  const char* name = nullptr;
  const char* text = nullptr;
  api().error_name(result, &name);
  api().error_string(result, &text);
  base::fail(ErrorCode::device, call, ": ", name ? name : "error", " (", result, "): ", text ? text : "unknown");
}

int device_count() {
  if (!unavailable().empty()) return 0;
  int count = 0;
  check(api().device_count(&count), "cuDeviceGetCount");
  return count;
}

int current_device() {
  Context context = nullptr;
  check(api().context_current(&context), "cuCtxGetCurrent");
  if (context == nullptr) return 0;
  DeviceHandle current = 0, handle = 0;
  check(api().context_device(&current), "cuCtxGetDevice");
  for (int device = 0; device < device_count(); ++device) {
    check(api().device_get(&handle, device), "cuDeviceGet");
    if (handle == current) return device;
  }
  return 0;
}

namespace {

DeviceFacts read_facts(int device) {
  DeviceFacts facts;
  DeviceHandle handle = 0;
  check(api().device_get(&handle, device), "cuDeviceGet");
  char name[256] = {};
  check(api().device_name(name, sizeof name, handle), "cuDeviceGetName");
  facts.name = name;
  const auto read = [&](DeviceAttribute attribute) {
    int value = 0;
    check(api().device_attribute(&value, attribute, handle), "cuDeviceGetAttribute");
    return value;
  };
  facts.major = read(DeviceAttribute::compute_capability_major);
  facts.minor = read(DeviceAttribute::compute_capability_minor);
  facts.multiprocessors = read(DeviceAttribute::multiprocessor_count);
  facts.shared_bytes_per_block = static_cast<std::size_t>(read(DeviceAttribute::max_shared_memory_per_block_optin));
  facts.l2_bytes = static_cast<std::size_t>(read(DeviceAttribute::l2_cache_bytes));
  check(api().primary_context_retain(&facts.context, handle), "cuDevicePrimaryCtxRetain");
  return facts;
}

}  // namespace

const DeviceFacts& device_facts(int device) {
  if (redirection.facts) return *redirection.facts;
  // Asked for in every run: a device that is known costs no lock and no call of the driver. Never destroyed: at the end of the process
  // plans that are kept release their memory.
  struct Slot {
    std::once_flag once;
    DeviceFacts facts;
  };
  static std::vector<Slot>& known = *new std::vector<Slot>(static_cast<std::size_t>((api(), device_count())));
  if (device < 0 || device >= static_cast<int>(known.size()))
    base::fail(ErrorCode::device, "device cuda:", device, " does not exist; the driver sees ", known.size());
  Slot& slot = known[static_cast<std::size_t>(device)];
  std::call_once(slot.once, [&] { slot.facts = read_facts(device); });
  return slot.facts;
}

Current::Current(int device) {
  Context wanted = device_facts(device).context;
  Context found = nullptr;
  check(api().context_current(&found), "cuCtxGetCurrent");
  if (found == wanted) return;
  check(api().context_push(wanted), "cuCtxPushCurrent");
  pops_ = found != nullptr || device != 0;
}

Current::~Current() {
  if (!pops_) return;
  Context popped = nullptr;
  api().context_pop(&popped);
}

BesideCapture::BesideCapture() { check(api().exchange_capture_mode(&mode_), "cuThreadExchangeStreamCaptureMode"); }
BesideCapture::~BesideCapture() { api().exchange_capture_mode(&mode_); }

Memory::Memory(int device, const void* host, std::size_t bytes) : device_(device) {
  if (bytes == 0) return;
  Current current(device);
  check(api().memory_alloc(&pointer_, bytes), "cuMemAlloc");
  check(api().copy_to_device(pointer_, host, bytes), "cuMemcpyHtoD");
}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(pointer_, other.pointer_);
  std::swap(device_, other.device_);
  return *this;
}

Memory::~Memory() {
  if (!pointer_) return;
  const BesideCapture beside;
  Current current(device_);
  api().memory_free(pointer_);
}

}  // namespace foveal::cuda::driver
