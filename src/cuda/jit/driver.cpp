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

void check(Result result, const char* function) {
  if (result == 0) return;
  const char* name = nullptr;
  const char* text = nullptr;
  api().error_name(result, &name);
  api().error_string(result, &text);
  std::string_view plain = function;
  if (plain.size() > 3 && plain.substr(plain.size() - 3, 2) == "_v") plain.remove_suffix(3);  // the version of its interface
  base::fail(ErrorCode::device, plain, ": ", name ? name : "error", " (", result, "): ", text ? text : "unknown");
}

bool has_programmatic_launches() {
  static const bool has = [] {
    constexpr int cuda_12_3 = 12030;
    int version = 0;
    const Loaded& driver = loaded();
    return driver.unavailable.empty() && driver.api.driver_version(&version) == 0 && version >= cuda_12_3;
  }();
  return has;
}

int device_count() {
  if (!unavailable().empty()) return 0;
  int count = 0;
  call.device_count(&count);
  return count;
}

int current_device() {
  Context context = nullptr;
  call.context_current(&context);
  if (context == nullptr) return 0;
  DeviceHandle current = 0, handle = 0;
  call.context_device(&current);
  for (int device = 0; device < device_count(); ++device) {
    call.device_get(&handle, device);
    if (handle == current) return device;
  }
  return 0;
}

namespace {

DeviceFacts read_facts(int device) {
  DeviceFacts facts;
  DeviceHandle handle = 0;
  call.device_get(&handle, device);
  char name[256] = {};
  call.device_name(name, sizeof name, handle);
  facts.name = name;
  const auto read = [&](DeviceAttribute attribute) {
    int value = 0;
    call.device_attribute(&value, attribute, handle);
    return value;
  };
  facts.major = read(DeviceAttribute::compute_capability_major);
  facts.minor = read(DeviceAttribute::compute_capability_minor);
  facts.multiprocessors = read(DeviceAttribute::multiprocessor_count);
  facts.shared_bytes_per_block = static_cast<std::size_t>(read(DeviceAttribute::max_shared_memory_per_block_optin));
  facts.l2_bytes = static_cast<std::size_t>(read(DeviceAttribute::l2_cache_bytes));
  call.primary_context_retain(&facts.context, handle);
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
  call.context_current(&found);
  if (found == wanted) return;
  call.context_push(wanted);
  pops_ = found != nullptr || device != 0;
}

Current::~Current() {
  if (!pops_) return;
  Context popped = nullptr;
  api().context_pop(&popped);
}

BesideCapture::BesideCapture() { call.exchange_capture_mode(&mode_); }
BesideCapture::~BesideCapture() { api().exchange_capture_mode(&mode_); }

namespace {

struct Dropped {
  std::mutex mutex;
  std::list<Held::Item> items;
  std::size_t bytes = 0;
};
Dropped& dropped() {
  static auto& all = *new Dropped;  // never destroyed: whoever holds something may end after it
  return all;
}

}  // namespace

Held& Held::operator=(Held&& other) noexcept {
  std::swap(item_, other.item_);
  return *this;
}

Held::~Held() {
  if (item_.empty()) return;
  if (redirection.api == item_.front().api) {
    item_.front().release();
    return;
  }
  Dropped& all = dropped();
  const std::lock_guard lock(all.mutex);
  all.bytes += item_.front().bytes;
  all.items.splice(all.items.end(), item_);
}

void Held::Item::release() const noexcept {
  try {
    const BesideCapture beside;
    const Current current(device);
    if (library) api->library_unload(library);
    if (pointer) api->memory_free(pointer);
  } catch (...) {  // the device is gone, and all that was on it
  }
}

void give_back(bool all) noexcept {
  constexpr std::size_t many = 64, much = std::size_t{64} << 20;
  if (redirection.api) return;
  std::list<Held::Item> items;
  {
    const std::lock_guard lock(dropped().mutex);
    if (!all && dropped().items.size() < many && dropped().bytes < much) return;
    items.swap(dropped().items);
    dropped().bytes = 0;
  }
  if (items.empty()) return;
  for (const Held::Item& item : items) item.release();  // the driver waits for work that uses it
}

namespace {

/// Waits for no other stream, and none waits for it: what the legacy stream does would end the capture of a blocking stream into a graph.
class OwnStream {
 public:
  OwnStream() {
    constexpr unsigned non_blocking = 1;
    call.stream_create(&stream_, non_blocking);
  }
  ~OwnStream() { api().stream_destroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  StreamHandle get() const { return stream_; }

 private:
  StreamHandle stream_ = nullptr;
};

}  // namespace

Memory::Memory(int device, const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  Current current(device);
  DevicePointer pointer = 0;
  check(with_memory([&] { return api().memory_alloc(&pointer, bytes); }), "cuMemAlloc");
  try {
    held_ = Held(device, pointer, bytes);
  } catch (...) {
    api().memory_free(pointer);
    throw;
  }
  const OwnStream stream;
  call.copy_to_device_async(pointer, host, bytes, stream.get());
  call.stream_synchronize(stream.get());  // pageable memory may still be on its way when the copy returns
}

namespace {

/// The graph that work on the stream is captured into, or null.
Graph graph_of(StreamHandle stream) {
  if (stream == nullptr) return nullptr;  // the legacy stream is never captured
  int status = 0;
  std::uint64_t id = 0;
  Graph graph = nullptr;
  constexpr int active = 1;
  call.capture_info(stream, &status, &id, &graph, nullptr, nullptr);
  return status == active ? graph : nullptr;
}

}  // namespace

bool is_captured(StreamHandle stream) { return graph_of(stream) != nullptr; }

void keep_while_captured(StreamHandle stream, const std::shared_ptr<const void>& what) {
  Graph graph = graph_of(stream);
  if (graph == nullptr) return;
  auto holder = std::make_unique<std::shared_ptr<const void>>(what);
  const auto destroy = [](void* held) { delete static_cast<std::shared_ptr<const void>*>(held); };
  constexpr unsigned no_destructor_sync = 1, move = 1;
  UserObject object = nullptr;
  call.user_object_create(&object, holder.get(), destroy, 1, no_destructor_sync);
  static_cast<void>(holder.release());
  const Result retained = api().graph_retain(graph, object, 1, move);
  if (retained != 0) api().user_object_release(object, 1);
  check(retained, "cuGraphRetainUserObject");
}

}  // namespace foveal::cuda::driver
