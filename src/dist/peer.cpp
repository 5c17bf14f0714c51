// Ranks of one host whose GPUs write to each other's memory: copy engines carry the messages, and no multiprocessor. A receiver's host says
// where a message goes, its GPU when that memory is free; the sender's GPU waits for that on a stream of its own, copies, and says so.
// Flags lie in the memory of the GPU that waits: its streams do, or its kernels.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/check.h"
#include "cuda/cuda_memory.h"
#include "cuda/jit/driver.h"
#include "dist/events.h"
#include "dist/mailbox.h"
#include "foveal/dist.h"

namespace foveal::dist {
namespace {

namespace driver = cuda::driver;
using Clock = std::chrono::steady_clock;

/// The mailbox as the device sees it.
class Registered {
 public:
  explicit Registered(const Mailbox& mailbox) : host_(mailbox.memory()) {
    constexpr unsigned portable_and_mapped = 3;
    driver::check(driver::api().host_register(host_, mailbox.bytes(), portable_and_mapped), "cuMemHostRegister");
    const driver::Result result = driver::api().host_device_pointer(&device_, host_, 0);
    if (result != 0) driver::api().host_unregister(host_);
    driver::check(result, "cuMemHostGetDevicePointer");
  }
  ~Registered() { driver::api().host_unregister(host_); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  driver::DevicePointer at(const void* host) const {
    return device_ + static_cast<driver::DevicePointer>(static_cast<const std::byte*>(host) - static_cast<const std::byte*>(host_));
  }

 private:
  void* host_;
  driver::DevicePointer device_ = 0;
};

class PeerTransport final : public Transport {
 public:
  PeerTransport(const std::string& name, int rank, int size, Device device, const PeerOptions& options)
      : rank_(rank),
        size_(size),
        device_(device.index),
        time_limit_(options.time_limit),
        mailbox_(name, rank, size, options.time_limit),
        counts_(static_cast<std::size_t>(size)) {
    mapped_.resize(static_cast<std::size_t>(size));
    const driver::Current current(device_);
    std::string why;
    try {
      registered_.emplace(mailbox_);
      constexpr unsigned non_blocking = 1;
      constexpr int first = -5;  // the driver takes the nearest that there is
      driver::check(driver::api().stream_create_with_priority(&stream_, non_blocking, first), "cuStreamCreateWithPriority");
      driver::DeviceHandle handle = 0;
      driver::check(driver::api().device_get(&handle, device_), "cuDeviceGet");
      driver::check(driver::api().device_uuid(mailbox_.of(rank).gpu.data(), handle), "cuDeviceGetUuid");
      mailbox_.of(rank).device = device_;
    } catch (const Error& error) {
      why = error.what();
    }
    try {
      agree_that_all_work(why);  // so that each sees the devices of all
      agree_that_all_work(reach_all());
    } catch (...) {
      drop();
      throw;
    }
    watch_ = std::thread([this] { watch(); });
  }

  ~PeerTransport() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    watch_.join();
    drop();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool carries_device_memory() const override { return true; }
  std::string name() const override { return "peer copies"; }

  std::uint64_t start(const std::vector<Message>&, const std::vector<Message>&) override {
    base::fail(ErrorCode::unsupported, "transport: peer copies carry device memory; these tensors are in host memory");
  }
  void wait(std::uint64_t) override { base::fail(ErrorCode::unsupported, "transport: peer copies carry device memory"); }
  void all_gather(const void* mine, std::size_t bytes, void* all) override { mailbox_.gather(mine, bytes, all); }

  std::uint64_t start_on(Stream stream, const std::vector<Message>& sends, const std::vector<Message>& receives) override {
    mailbox_.throw_failure();
    const driver::Current current(device_);
    const auto caller = static_cast<driver::StreamHandle>(stream.handle);
    see_deaths();
    Ticket ticket;
    for (const Message& m : receives)
      if (m.bytes > 0) post(m), add(ticket.sources, m.peer);
    for (auto& [source, group] : ticket.sources) {
      group = ++of(source).awaited;
      write(caller, Flag::ready, source, group);
    }
    ticket.begins = events_.take(), ticket.sent = events_.take(), ticket.ended = events_.take();
    driver::check(driver::api().event_record(ticket.begins, caller), "cuEventRecord");
    driver::check(driver::api().stream_wait_event(stream_, ticket.begins, 0), "cuStreamWaitEvent");
    copy(sends);
    driver::check(driver::api().event_record(ticket.sent, stream_), "cuEventRecord");
    const std::lock_guard lock(mutex_);
    tickets_.emplace(++last_, std::move(ticket));
    return last_;
  }

  void wait_on(Stream stream, std::uint64_t number) override {
    Ticket ticket;
    {
      const std::lock_guard lock(mutex_);
      const auto found = tickets_.find(number);
      if (found == tickets_.end() || found->second.was_waited_for) return;
      ticket = found->second;
    }
    const driver::Current current(device_);
    const auto caller = static_cast<driver::StreamHandle>(stream.handle);
    for (const auto& [source, group] : ticket.sources) wait_for(caller, Flag::arrived, source, group);
    driver::check(driver::api().stream_wait_event(caller, ticket.sent, 0), "cuStreamWaitEvent");
    driver::check(driver::api().event_record(ticket.ended, caller), "cuEventRecord");
    const std::lock_guard lock(mutex_);
    tickets_.at(number).was_waited_for = true;
  }

  bool ranks_share_gpus() const override { return shares_gpu_; }
  std::optional<ArrivalWord> arrival_word(std::uint64_t number, int peer) override {
    if (shares_gpu_) return std::nullopt;
    const std::lock_guard lock(mutex_);
    const auto found = tickets_.find(number);
    if (found == tickets_.end()) return std::nullopt;
    for (const auto& [source, group] : found->second.sources)
      if (source == peer)
        return ArrivalWord{reinterpret_cast<const std::uint32_t*>(mine(Flag::arrived, source)), group,
                           reinterpret_cast<const std::uint32_t*>(registered_->at(mailbox_.failure_word()))};
    return std::nullopt;
  }

  void* allocate(std::size_t bytes) override {
    see_deaths();
    Mailbox::Rank& mine = mailbox_.of(rank_);
    for (std::size_t slot = 0; slot < Mailbox::most_allocations; ++slot) {
      Mailbox::Allocation& allocation = mine.allocations[slot];
      if (allocation.generation.load() % 2 == 1 || dying_.count(slot) != 0) continue;
      constexpr std::size_t page = std::size_t{2} << 20;  // what another process can map
      const std::size_t whole = (bytes + page - 1) / page * page;
      void* made = cuda::cuda_memory(device_).allocate(whole);
      const driver::Current current(device_);
      const driver::Result result =
          alone_ ? 0 : driver::api().ipc_handle(&allocation.handle, reinterpret_cast<driver::DevicePointer>(made));
      if (result != 0) cuda::cuda_memory(device_).release(made);
      driver::check(result, "cuIpcGetMemHandle");
      allocation.address = reinterpret_cast<std::uint64_t>(made), allocation.bytes = whole;
      allocation.generation.fetch_add(1, std::memory_order_release);
      mine_.emplace(allocation.address, slot);
      return made;
    }
    base::fail(ErrorCode::unsupported, "peer copies: more than ", Mailbox::most_allocations, " buffers on a rank");
  }

  /// Not before the others have let go of it.
  void release(void* memory) noexcept override {
    const auto found = mine_.find(reinterpret_cast<std::uint64_t>(memory));
    if (found == mine_.end()) return;
    Mailbox::Rank& mine = mailbox_.of(rank_);
    mine.allocations[found->second].generation.fetch_add(1, std::memory_order_release);
    dying_.emplace(found->second, Dying{memory, mine.deaths.fetch_add(1, std::memory_order_release) + 1});
    mine_.erase(found);
  }

  void fail(const std::string& why) noexcept override {
    std::array<char, 400> text{};  // memory may be what has run out
    std::snprintf(text.data(), text.size(), "rank %d failed: %s", rank_, why.c_str());
    mailbox_.fail(text.data());
  }

 private:
  /// Groups of messages between this rank and another.
  struct Counts {
    std::atomic<std::uint32_t> awaited = 0, sent = 0;
  };
  struct Ticket {
    std::vector<std::pair<int, std::uint32_t>> sources{};  ///< ranks that send, and the number of the group
    driver::EventHandle begins = nullptr, sent = nullptr, ended = nullptr;
    bool was_waited_for = false, has_begun = false;
    Clock::time_point begun{};
  };
  struct Mapped {
    std::uint64_t generation = 0;
    driver::DevicePointer address = 0;
    bool opened = false;  ///< of another process
  };
  struct Dying {
    void* memory;
    std::uint64_t death;
  };

  Counts& of(int rank) { return counts_[static_cast<std::size_t>(rank)]; }
  static void add(std::vector<std::pair<int, std::uint32_t>>& ranks, int rank) {
    for (const auto& [known, number] : ranks)
      if (known == rank) return;
    ranks.emplace_back(rank, 0);
  }

  /// Every rank throws when one cannot go on.
  void agree_that_all_work(const std::string& why) {
    std::array<char, 256> mine{};
    std::snprintf(mine.data(), mine.size(), "%s", why.c_str());
    std::vector<std::array<char, 256>> all(static_cast<std::size_t>(size_));
    mailbox_.gather(mine.data(), mine.size(), all.data());
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank][0] != 0) base::fail(ErrorCode::unsupported, "peer copies: rank ", rank, ": ", all[rank].data());
  }

  /// Makes the flags of all ranks, sets one of every other rank, and looks at what they set; "" or what does not work.
  std::string reach_all() noexcept {
    try {
      for (int rank = 0; rank < size_; ++rank) {
        alone_ = alone_ && mailbox_.of(rank).process == mailbox_.of(rank_).process;
        shares_gpu_ = shares_gpu_ || (rank != rank_ && mailbox_.of(rank).gpu == mailbox_.of(rank_).gpu);
      }
      const auto ranks = static_cast<std::size_t>(size_);
      const std::vector<std::byte> zeros(2 * ranks * flag_bytes);
      void* there = allocate(zeros.size());
      flags_ = reinterpret_cast<driver::DevicePointer>(there);
      planning::DeviceMemory& memory = cuda::cuda_memory(device_);
      memory.to_device(there, zeros.data(), zeros.size());
      const std::uint64_t slot = mine_.at(flags_);
      std::vector<std::uint64_t> slots(ranks);
      mailbox_.gather(&slot, sizeof slot, slots.data());
      their_flags_.resize(ranks);
      std::string why;
      for (int rank = 0; rank < size_ && why.empty(); ++rank) {
        if (rank == rank_) continue;
        try {
          their_flags_[static_cast<std::size_t>(rank)] = mapped(rank, slots[static_cast<std::size_t>(rank)]);
          of(rank).sent = 1, of(rank).awaited = 1;
          write(stream_, Flag::arrived, rank, 1), write(stream_, Flag::ready, rank, 1);
        } catch (const Error& error) {
          why = base::join("it does not reach the GPU of rank ", rank, ": ", error.what());
        }
      }
      if (driver::api().stream_synchronize(stream_) != 0 && why.empty()) why = "a copy to another GPU failed";
      mailbox_.gather(&slot, sizeof slot, slots.data());  // all have written
      std::vector<std::byte> found(zeros.size());
      memory.to_host(found.data(), there, found.size());
      for (int rank = 0; rank < size_ && why.empty(); ++rank)
        for (const Flag flag : {Flag::arrived, Flag::ready})
          if (rank != rank_ && found[flag_at(flag, rank)] != std::byte{1})
            why = base::join("what rank ", rank, " wrote to its GPU did not arrive");
      return why;
    } catch (const std::exception& error) {
      fail(error.what());
      return error.what();
    }
  }

  void post(const Message& m) {
    const auto address = reinterpret_cast<std::uint64_t>(m.data);
    auto found = mine_.upper_bound(address);
    FOVEAL_CHECK(found != mine_.begin(), "peer copies: a message to memory that was not allocated for it");
    --found;
    const std::uint64_t offset = address - found->first, slot = found->second;
    Mailbox::Allocation& allocation = mailbox_.of(rank_).allocations[slot];
    FOVEAL_CHECK(offset + m.bytes <= allocation.bytes, "peer copies: a message to memory that was not allocated for it");
    Mailbox::Lane& lane = mailbox_.lane(m.peer, rank_);
    const std::uint64_t number = lane.posted.load(std::memory_order_relaxed);
    mailbox_.wait_until([&] { return number - lane.taken.load(std::memory_order_acquire) < Mailbox::most_posts; }, "to take messages");
    lane.posts[number % Mailbox::most_posts] = {slot, allocation.generation.load(std::memory_order_relaxed), offset, m.bytes};
    lane.posted.store(number + 1, std::memory_order_release);
  }

  void copy(const std::vector<Message>& sends) {
    std::map<int, std::size_t> left;
    for (const Message& m : sends)
      if (m.bytes > 0) ++left[m.peer];
    std::vector<bool> has_begun(static_cast<std::size_t>(size_), false);
    for (const Message& m : sends) {
      if (m.bytes == 0) continue;
      Mailbox::Lane& lane = mailbox_.lane(rank_, m.peer);
      const std::uint64_t number = lane.taken.load(std::memory_order_relaxed);
      mailbox_.wait_until([&] { return lane.posted.load(std::memory_order_acquire) > number; }, "to receive messages");
      const Mailbox::Post post = lane.posts[number % Mailbox::most_posts];
      if (post.bytes != m.bytes) {
        fail(base::join("rank ", m.peer, " waits for a message of ", post.bytes, " bytes; it has one of ", m.bytes));
        mailbox_.throw_failure();
      }
      if (!has_begun[static_cast<std::size_t>(m.peer)]) {
        has_begun[static_cast<std::size_t>(m.peer)] = true;
        wait_for(stream_, Flag::ready, m.peer, ++of(m.peer).sent);
      }
      driver::check(driver::api().copy_on_device(mapped(m.peer, post.allocation) + post.offset,
                                                 reinterpret_cast<driver::DevicePointer>(m.data), m.bytes, stream_),
                    "cuMemcpyDtoDAsync");
      lane.taken.store(number + 1, std::memory_order_release);
      if (--left[m.peer] == 0) write(stream_, Flag::arrived, m.peer, of(m.peer).sent);
    }
  }

  enum class Flag : std::size_t { arrived, ready };
  static constexpr std::size_t flag_bytes = 256;
  std::size_t flag_at(Flag flag, int peer) const {
    return (static_cast<std::size_t>(flag) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(peer)) * flag_bytes;
  }
  /// Flags of this rank: set by the peer.
  driver::DevicePointer mine(Flag flag, int peer) const { return flags_ + flag_at(flag, peer); }
  /// Sets the flag that a peer waits for, when what comes before on the stream is done and seen by all.
  /// What comes next on the stream waits until a peer has counted up to `value`. Where ranks share a GPU the host does: streams are more than the queues of a GPU, and one that
  /// waits can hold up another rank's, for which it waits.
  void wait_for(driver::StreamHandle stream, Flag flag, int peer, std::uint32_t value) {
    const driver::DevicePointer at = mine(flag, peer);
    if (!shares_gpu_) {
      constexpr unsigned at_least = 0;
      driver::check(driver::api().stream_wait_value(stream, at, value, at_least), "cuStreamWaitValue32");
      return;
    }
    const auto has_come = [&] {
      std::uint32_t found = 0;
      driver::check(driver::api().copy_to_host(&found, at, sizeof found), "cuMemcpyDtoH");
      return static_cast<std::int32_t>(found - value) >= 0;
    };
    mailbox_.wait_until(has_come, "to come as far with its GPU");
  }
  void write(driver::StreamHandle stream, Flag flag, int peer, std::uint32_t value) const {
    const driver::DevicePointer to = their_flags_[static_cast<std::size_t>(peer)] + flag_at(flag, rank_);
    driver::check(driver::api().stream_write_value(stream, to, value, 0), "cuStreamWriteValue32");
  }

  /// Where an allocation of another rank is, for this device.
  driver::DevicePointer mapped(int rank, std::uint64_t slot) {
    Mailbox::Rank& theirs = mailbox_.of(rank);
    const Mailbox::Allocation& allocation = theirs.allocations[slot];
    Mapped& known = mapped_[static_cast<std::size_t>(rank)][slot];
    const std::uint64_t generation = allocation.generation.load(std::memory_order_acquire);
    if (known.generation == generation) return known.address;
    unmap(known);
    if (theirs.process == mailbox_.of(rank_).process) {
      reach_in_process(theirs.device);
      known.address = allocation.address;
    } else {
      constexpr unsigned reach_on_demand = 1;
      driver::check(driver::api().ipc_open(&known.address, allocation.handle, reach_on_demand), "cuIpcOpenMemHandle");
      known.opened = true;
    }
    known.generation = generation;
    return known.address;
  }
  void reach_in_process(int device) const {
    if (device == device_) return;
    driver::DeviceHandle mine = 0, theirs = 0;
    driver::check(driver::api().device_get(&mine, device_), "cuDeviceGet");
    driver::check(driver::api().device_get(&theirs, device), "cuDeviceGet");
    int can = 0;
    driver::check(driver::api().can_access_peer(&can, mine, theirs), "cuDeviceCanAccessPeer");
    if (can == 0) base::fail(ErrorCode::unsupported, "cuda:", device_, " does not reach the memory of cuda:", device);
    constexpr driver::Result reaches_already = 704;
    const driver::Result result = driver::api().enable_peer_access(driver::device_facts(device).context, 0);
    if (result != reaches_already) driver::check(result, "cuCtxEnablePeerAccess");
  }
  static void unmap(Mapped& mapped) {
    if (mapped.opened) driver::api().ipc_close(mapped.address);
    mapped = {};
  }

  /// Lets go of what others gave up, and frees what they let go of.
  void see_deaths() {
    const driver::Current current(device_);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      Mailbox::Rank& theirs = mailbox_.of(rank);
      const std::uint64_t deaths = theirs.deaths.load(std::memory_order_acquire);
      std::atomic<std::uint64_t>& seen = mailbox_.of(rank_).deaths_seen[rank];
      if (seen.load(std::memory_order_relaxed) == deaths) continue;
      for (auto& [slot, mapped] : mapped_[static_cast<std::size_t>(rank)])
        if (mapped.generation != theirs.allocations[slot].generation.load(std::memory_order_acquire)) unmap(mapped);
      seen.store(deaths, std::memory_order_release);
    }
    for (auto dying = dying_.begin(); dying != dying_.end();) {
      const bool all = everyone_else(
          [&](int rank) { return mailbox_.of(rank).deaths_seen[rank_].load(std::memory_order_acquire) >= dying->second.death; });
      if (all) cuda::cuda_memory(device_).release(dying->second.memory);
      dying = all ? dying_.erase(dying) : std::next(dying);
    }
  }
  template <class Holds>
  bool everyone_else(Holds&& holds) const {
    for (int rank = 0; rank < size_; ++rank)
      if (rank != rank_ && !holds(rank)) return false;
    return true;
  }

  /// The end: nothing is under way, or all has failed.
  void drop() noexcept {
    try {
      const driver::Current current(device_);
      if (stream_ != nullptr && !mailbox_.has_failed()) driver::api().stream_synchronize(stream_);
      for (auto& of_rank : mapped_)
        for (auto& [slot, mapped] : of_rank) unmap(mapped);
      while (!mine_.empty()) release(reinterpret_cast<void*>(mine_.begin()->first));
      for (int rank = 0; rank < size_; ++rank)
        mailbox_.of(rank_).deaths_seen[rank].store(~std::uint64_t{0}, std::memory_order_release);  // it holds nothing any more
      // What is still mapped elsewhere stays until that is closed there, or until the end of the process.
      const Clock::time_point latest = Clock::now() + std::chrono::seconds(1);
      for (see_deaths(); !dying_.empty() && !mailbox_.has_failed() && Clock::now() < latest; see_deaths())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (const auto& [number, ticket] : tickets_) give_back(ticket);
      events_.clear();
      for (const driver::StreamHandle stream : {stream_, rescue_})
        if (stream != nullptr) driver::api().stream_destroy(stream);
      registered_.reset();
    } catch (...) {  // the device is gone, and all that was on it
    }
  }

  static bool has_ended(const Ticket& ticket) { return ticket.was_waited_for && driver::api().event_query(ticket.ended) == 0; }
  void give_back(const Ticket& ticket) {
    for (const driver::EventHandle event : {ticket.begins, ticket.sent, ticket.ended}) events_.give(event);
  }

  /// A thread of its own: transfers that take too long, and ranks that are gone, are failures; then nothing waits on this GPU any more.
  void watch() {
    const driver::Current current(device_);
    std::unique_lock lock(mutex_);
    for (int round = 0; !ends_; ++round) {
      while (!tickets_.empty() && has_ended(tickets_.begin()->second)) {
        give_back(tickets_.begin()->second);
        tickets_.erase(tickets_.begin());
      }
      if (!mailbox_.has_failed()) {
        if (round % 10 == 0) mailbox_.look_for_the_dead();  // also for a host that waits for another one's
        if (!tickets_.empty()) look_at(tickets_.begin()->second);
      }
      if (mailbox_.has_failed()) end_waits();
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
  }
  void look_at(Ticket& first) {
    if (!first.has_begun && driver::api().event_query(first.begins) == 0) first.has_begun = true, first.begun = Clock::now();
    if (first.has_begun && std::chrono::duration<double>(Clock::now() - first.begun).count() > time_limit_)
      mailbox_.fail(base::join("rank ", rank_, " waited ", time_limit_, " s for the others").c_str());
  }
  /// Kernels that wait see the failure themselves; streams do not.
  void end_waits() {
    if (flags_ == 0) return;
    if (rescue_ == nullptr && driver::api().stream_create(&rescue_, 1) != 0) return;
    for (int rank = 0; rank < size_; ++rank)
      for (const auto& [flag, value] : {std::pair{Flag::arrived, of(rank).awaited.load()}, {Flag::ready, of(rank).sent.load()}})
        driver::api().stream_write_value(rescue_, mine(flag, rank), value, 0);
  }

  const int rank_, size_, device_;
  const double time_limit_;
  Mailbox mailbox_;
  std::optional<Registered> registered_;
  bool alone_ = true;        ///< all ranks are threads of this process
  bool shares_gpu_ = false;  ///< a kernel that waits could keep the kernels of another rank from starting, for which it waits
  driver::StreamHandle stream_ = nullptr, rescue_ = nullptr;
  driver::DevicePointer flags_ = 0;  ///< of this rank
  std::vector<driver::DevicePointer> their_flags_;
  Events events_;
  std::vector<Counts> counts_;                 ///< of each other rank
  std::map<std::uint64_t, std::size_t> mine_;  ///< slots of allocations, by their addresses
  std::map<std::size_t, Dying> dying_;         ///< by their slots
  std::vector<std::map<std::uint64_t, Mapped>> mapped_;
  std::mutex mutex_;  ///< of all that follows
  std::condition_variable changed_;
  std::map<std::uint64_t, Ticket> tickets_;  ///< by their numbers
  std::uint64_t last_ = 0;
  bool ends_ = false;
  std::thread watch_;
};

}  // namespace

std::string peer_id() { return base::join(Mailbox::new_name(), ' ', mailbox_host()); }

bool peer_reachable(const std::string& id) {
  const std::size_t space = id.find(' ');
  FOVEAL_CHECK(space != std::string::npos && id[0] == '/', "peer_ranks: id: \"", id, "\"; expected what peer_id() gave rank 0");
  return id.substr(space + 1) == mailbox_host();
}

std::shared_ptr<Transport> peer_ranks(const std::string& id, int rank, int size, Device device, const PeerOptions& options) {
  FOVEAL_CHECK(size >= 1 && rank >= 0 && rank < size, "peer_ranks: rank ", rank, " of ", size,
               "; expected a rank below the number of ranks");
  FOVEAL_CHECK(size <= Mailbox::most_ranks, "peer_ranks: size: ", size, " ranks; expected at most ", Mailbox::most_ranks);
  FOVEAL_CHECK(device.kind == DeviceKind::cuda, "peer_ranks: device: the CPU; expected a GPU");
  if (!peer_reachable(id))
    base::fail(ErrorCode::unsupported, "peer_ranks: rank ", rank, " is on another host than rank 0; expected one host, or nccl_ranks()");
  return std::make_shared<PeerTransport>(id.substr(0, id.find(' ')), rank, size, device, options);
}

}  // namespace foveal::dist
