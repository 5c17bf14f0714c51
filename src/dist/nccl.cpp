// Ranks with a GPU each, by NCCL. libnccl is loaded at run time, so that its few types are declared here.
#include <dlfcn.h>

#include <array>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "cuda/cuda_memory.h"
#include "cuda/jit/driver.h"
#include "dist/events.h"
#include "dist/failure_text.h"
#include "dist/time_limit.h"
#include "foveal/dist.h"

namespace foveal::dist {
namespace {

namespace driver = cuda::driver;
using Communicator = struct CommunicatorTag*;
using Clock = std::chrono::steady_clock;

struct UniqueId {
  char bytes[128];
};

/// As far as every version from 2.18 on knows it; later fields are taken as unset.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef, version = 21800;
  int blocking = 1, cluster = 0, least_ctas = INT_MIN, most_ctas = INT_MIN;
  const char* network = nullptr;
  int split_share = INT_MIN;
};

struct NcclLibrary {
  int (*GetVersion)(int*);
  int (*GetUniqueId)(UniqueId*);
  int (*CommInitRankConfig)(Communicator*, int, UniqueId, int, Config*);
  int (*CommDestroy)(Communicator);
  int (*CommAbort)(Communicator);
  int (*CommGetAsyncError)(Communicator, int*);
  int (*Send)(const void*, std::size_t, int, int, Communicator, void*);
  int (*Recv)(void*, std::size_t, int, int, Communicator, void*);
  int (*AllGather)(const void*, void*, std::size_t, int, Communicator, void*);
  int (*GroupStart)();
  int (*GroupEnd)();
  const char* (*GetErrorString)(int);
  std::string unavailable;
};

NcclLibrary load_nccl() {
  NcclLibrary nccl{};
  void* image = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);  // if the process has loaded one already, take that
  if (image == nullptr && dlsym(RTLD_DEFAULT, "ncclGetVersion") != nullptr) image = dlopen(nullptr, RTLD_NOW);
  if (image == nullptr) image = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (image == nullptr) {
    nccl.unavailable =
        "NCCL: libnccl.so.2 was not found; install NCCL (NVIDIA's packages: libnccl2; for Python: nvidia-nccl-cu13 or -cu12)";
    return nccl;
  }
  const auto function = [&](auto& pointer, const char* name) {
    void* symbol = dlsym(image, name);
    if (symbol == nullptr && nccl.unavailable.empty())
      nccl.unavailable = base::join("NCCL: the library has no ", name, "; expected 2.18 or later");
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(symbol);
  };
  function(nccl.GetVersion, "ncclGetVersion"), function(nccl.GetUniqueId, "ncclGetUniqueId");
  function(nccl.CommInitRankConfig, "ncclCommInitRankConfig"), function(nccl.CommDestroy, "ncclCommDestroy");
  function(nccl.CommAbort, "ncclCommAbort"), function(nccl.CommGetAsyncError, "ncclCommGetAsyncError");
  function(nccl.Send, "ncclSend"), function(nccl.Recv, "ncclRecv"), function(nccl.AllGather, "ncclAllGather");
  function(nccl.GroupStart, "ncclGroupStart"), function(nccl.GroupEnd, "ncclGroupEnd"), function(nccl.GetErrorString, "ncclGetErrorString");
  if (!nccl.unavailable.empty()) return nccl;
  int version = 0;
  nccl.GetVersion(&version);
  constexpr int oldest = 21800;
  if (version < oldest) nccl.unavailable = base::join("NCCL: the library is version ", version, "; expected 2.18 (", oldest, ") or later");
  return nccl;
}

const NcclLibrary& nccl_library() {
  static const NcclLibrary nccl = load_nccl();
  if (!nccl.unavailable.empty()) base::fail(ErrorCode::unsupported, nccl.unavailable);
  return nccl;
}

void check_nccl(int result, const char* what) {
  if (result != 0) base::fail(ErrorCode::communication, "NCCL: ", what, ": ", nccl_library().GetErrorString(result));
}

constexpr int one_byte = 0;  ///< ncclInt8

/// Transfers run on a stream of their own; a watchdog thread ends those that take too long.
class NcclTransport final : public Transport {
 public:
  NcclTransport(const UniqueId& id, int rank, int size, Device device, const NcclOptions& options)
      : nccl_(nccl_library()),
        rank_(rank),
        size_(size),
        device_(device.index),
        time_limit_(options.time_limit),
        multiprocessors_(options.multiprocessors) {
    const driver::Current current(device_);
    Config config;
    if (options.multiprocessors > 0) config.most_ctas = options.multiprocessors, config.least_ctas = 1;
    check_nccl(nccl_.CommInitRankConfig(&communicator_, size, id, rank, &config), "ncclCommInitRankConfig");
    constexpr unsigned non_blocking = 1;
    constexpr int first = -5;  // the driver takes the nearest that there is
    driver::call.stream_create_with_priority(&stream_, non_blocking, first);
    watch_ = std::thread([this] { watch(); });
  }
  ~NcclTransport() override {
    const driver::Current current(device_);
    if (!has_failed()) driver::api().stream_synchronize(stream_);  // the watchdog ends a wait for ranks that are gone
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    watch_.join();
    if (failure_.empty()) nccl_.CommDestroy(communicator_);
    for (const Ticket& ticket : watched_) forget(ticket);
    for (const auto& [number, event] : arrived_) driver::api().event_destroy(event);
    events_.clear();
    driver::api().stream_destroy(stream_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool carries_device_memory() const override { return true; }
  std::string name() const override { return "NCCL"; }
  int multiprocessors() const override { return multiprocessors_; }

  std::uint64_t start(const std::vector<Message>&, const std::vector<Message>&) override {
    base::fail(ErrorCode::unsupported, "transport: NCCL carries device memory; these tensors are in host memory");
  }
  void wait(std::uint64_t) override { base::fail(ErrorCode::unsupported, "transport: NCCL carries device memory"); }

  std::uint64_t start_on(Stream stream, const std::vector<Message>& sends, const std::vector<Message>& receives) override {
    const driver::Current current(device_);
    return issue(driver::handle_of(stream), [&] {
      check_nccl(nccl_.GroupStart(), "ncclGroupStart");
      int sent = 0, received = 0;  // the first that is not 0 is the error
      for (const Message& m : sends)
        if (m.bytes > 0 && sent == 0) sent = nccl_.Send(m.data, m.bytes, one_byte, m.peer, communicator_, stream_);
      for (const Message& m : receives)
        if (m.bytes > 0 && sent == 0 && received == 0) received = nccl_.Recv(m.data, m.bytes, one_byte, m.peer, communicator_, stream_);
      const int ended = nccl_.GroupEnd();  // in any case: groups are the thread's, also of communicators that others have
      check_nccl(sent, "ncclSend"), check_nccl(received, "ncclRecv"), check_nccl(ended, "ncclGroupEnd");
    });
  }

  void wait_on(Stream stream, std::uint64_t ticket) override {
    const std::lock_guard lock(mutex_);
    const auto found = arrived_.find(ticket);
    if (found == arrived_.end()) return;
    const driver::Current current(device_);
    driver::call.stream_wait_event(driver::handle_of(stream), found->second, 0);
    events_.give(found->second);
    arrived_.erase(found);
  }

  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    planning::DeviceMemory& memory = cuda::cuda_memory(device_);
    const std::size_t total = bytes * static_cast<std::size_t>(size_);
    char* there = static_cast<char*>(memory.allocate(total + bytes));
    struct Release {
      planning::DeviceMemory& memory;
      void* data;
      ~Release() { memory.release(data); }
    } const release{memory, there};
    memory.to_device(there + total, mine, bytes);
    memory.synchronize({});
    const driver::Current current(device_);
    issue(stream_, [&] { check_nccl(nccl_.AllGather(there + total, there, bytes, one_byte, communicator_, stream_), "ncclAllGather"); });
    const driver::EventHandle event = events_.take();
    driver::call.event_record(event, stream_);
    for (int tries = 0; driver::api().event_query(event) != 0; ++tries) {  // the watchdog ends what takes too long
      throw_failure();
      if (tries > 1000) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    throw_failure();
    events_.give(event);
    memory.to_host(all, there, total);
  }

  void fail(const std::string& why) noexcept override {
    const std::lock_guard lock(mutex_);
    end_with("rank %d failed: %s", rank_, why.c_str());
  }
  std::string failure() const override {
    const std::lock_guard lock(mutex_);
    return failure_.data();
  }

 private:
  struct Ticket {
    driver::EventHandle begins, ends;
    bool has_begun = false;
    Clock::time_point begun{};
  };

  /// Enqueues transfers after the work of `before` so far.
  template <class Put>
  std::uint64_t issue(driver::StreamHandle before, Put&& put) {
    throw_failure();
    const driver::EventHandle begins = events_.take(), ends = events_.take(), arrived = events_.take();
    driver::call.event_record(begins, before);
    driver::call.stream_wait_event(stream_, begins, 0);
    put();
    driver::call.event_record(ends, stream_);
    driver::call.event_record(arrived, stream_);
    const std::lock_guard lock(mutex_);
    watched_.push_back({begins, ends});
    arrived_.emplace(++last_, arrived);
    return last_;
  }

  static void forget(const Ticket& ticket) {
    driver::api().event_destroy(ticket.begins);
    driver::api().event_destroy(ticket.ends);
  }

  bool has_failed() {
    const std::lock_guard lock(mutex_);
    return !failure_.empty();
  }
  void throw_failure() {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) base::fail(ErrorCode::communication, "context parallelism: ", failure_.data());
  }
  /// Aborts transfers under way, whose data are lost.
  template <class... Values>
  void end_with(const char* format, Values... values) noexcept {
    if (!failure_.empty()) return;
    failure_.set(format, values...);
    nccl_.CommAbort(communicator_);
  }

  void watch() {
    const driver::Current current(device_);
    std::unique_lock lock(mutex_);
    while (!ends_) {
      while (!watched_.empty() && driver::api().event_query(watched_.front().ends) == 0) {
        events_.give(watched_.front().begins), events_.give(watched_.front().ends);
        watched_.pop_front();
      }
      if (!watched_.empty() && failure_.empty()) {
        Ticket& first = watched_.front();
        if (!first.has_begun && driver::api().event_query(first.begins) == 0) first.has_begun = true, first.begun = Clock::now();
        int error = 0;
        nccl_.CommGetAsyncError(communicator_, &error);
        constexpr int in_progress = 7;
        if (error != 0 && error != in_progress) end_with("NCCL: %s", nccl_.GetErrorString(error));
        if (first.has_begun && std::chrono::duration<double>(Clock::now() - first.begun).count() > time_limit_)
          end_with("rank %d waited %g s for the others", rank_, time_limit_);
      }
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
  }

  const NcclLibrary& nccl_;
  const int rank_, size_, device_;
  const double time_limit_;
  const int multiprocessors_;
  Communicator communicator_ = nullptr;
  driver::StreamHandle stream_ = nullptr;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Ticket> watched_;
  std::map<std::uint64_t, driver::EventHandle> arrived_;
  Events events_;
  std::uint64_t last_ = 0;
  FailureText failure_;
  bool ends_ = false;
  std::thread watch_;
};

}  // namespace

std::string nccl_id() {
  UniqueId id{};
  check_nccl(nccl_library().GetUniqueId(&id), "ncclGetUniqueId");
  return {id.bytes, sizeof id.bytes};
}

std::shared_ptr<Transport> nccl_ranks(const std::string& id, int rank, int size, Device device, const NcclOptions& options) {
  UniqueId copy{};
  FOVEAL_CHECK(id.size() == sizeof copy.bytes, "nccl_ranks: id: ", id.size(), " bytes; expected the ", sizeof copy.bytes,
               " of rank 0's nccl_id()");
  FOVEAL_CHECK(size >= 1 && rank >= 0 && rank < size, "nccl_ranks: rank ", rank, " of ", size,
               "; expected a rank below the number of ranks");
  FOVEAL_CHECK(device.kind == DeviceKind::cuda, "nccl_ranks: device: the CPU; expected a GPU");
  check_time_limit("nccl_ranks", options.time_limit);
  FOVEAL_CHECK(options.multiprocessors >= 0, "nccl_ranks: multiprocessors: ", options.multiprocessors,
               "; expected 0 (NCCL's choice) or more");
  std::memcpy(copy.bytes, id.data(), sizeof copy.bytes);
  return std::make_shared<NcclTransport>(copy, rank, size, device, options);
}

std::shared_ptr<Transport> nccl_ranks(Transport& control, Device device, const NcclOptions& options) {
  // Every rank takes part, whether rank 0 has an id or not.
  std::array<char, sizeof(UniqueId)> mine{};
  std::string failure;
  try {
    if (control.rank() == 0) std::memcpy(mine.data(), nccl_id().data(), mine.size());
    nccl_library();
  } catch (const Error& error) {
    failure = error.what();
  }
  std::vector<char> all(mine.size() * static_cast<std::size_t>(control.size()));
  control.all_gather(mine.data(), mine.size(), all.data());
  char works = failure.empty() ? 1 : 0;
  std::vector<char> of_all(static_cast<std::size_t>(control.size()));
  control.all_gather(&works, 1, of_all.data());
  if (!failure.empty()) base::fail(ErrorCode::unsupported, failure);
  for (std::size_t rank = 0; rank < of_all.size(); ++rank)
    if (of_all[rank] == 0) base::fail(ErrorCode::unsupported, "NCCL: rank ", rank, " has no library");
  return nccl_ranks(std::string(all.data(), mine.size()), control.rank(), control.size(), device, options);
}

}  // namespace foveal::dist
