// Peer-to-peer by copy engine, for ranks of one host whose GPUs write to each other's memory; no multiprocessor takes part.
// 1. The receiver's host posts the destination, and queues the post while its lane to the sender is full.
// 2. The receiver's GPU signals that the memory is free.
// 3. The sender's GPU waits for this, copies, and signals arrival.
// The GPUs do so on streams of their own. Signals are words in the memory of the GPU that waits for them, on a stream or in a kernel.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/check.h"
#include "cuda/cuda_memory.h"
#include "cuda/jit/driver.h"
#include "dist/events.h"
#include "dist/mailbox.h"
#include "dist/peer_memory.h"
#include "dist/time_limit.h"
#include "foveal/dist.h"

namespace foveal::dist {
namespace {

namespace driver = cuda::driver;
using Clock = std::chrono::steady_clock;

/// The mailbox mapped to the device.
class MappedMailbox {
 public:
  explicit MappedMailbox(const Mailbox& mailbox) : host_(mailbox.memory()) {
    constexpr unsigned portable_and_mapped = 3;
    driver::call.host_register(host_, mailbox.bytes(), portable_and_mapped);
    const driver::Result result = driver::api().host_device_pointer(&device_, host_, 0);
    if (result != 0) driver::api().host_unregister(host_);
    driver::check(result, "cuMemHostGetDevicePointer");
  }
  ~MappedMailbox() { driver::api().host_unregister(host_); }
  MappedMailbox(const MappedMailbox&) = delete;
  MappedMailbox& operator=(const MappedMailbox&) = delete;
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
        memory_(mailbox_, rank, size, device.index),
        peers_(static_cast<std::size_t>(size)) {
    mailbox_.while_waiting([this] { post_more(); });
    memory_.before_unmapping([this](int rank, std::uint64_t slot) { let_go_of_flags(rank, slot); });
    const driver::Current current(device_);
    std::string why;
    try {
      on_device_.emplace(mailbox_);
      constexpr unsigned non_blocking = 1;
      constexpr int first = -5;  // the driver takes the nearest that there is
      for (driver::StreamHandle* stream : {&stream_, &offers_}) driver::call.stream_create_with_priority(stream, non_blocking, first);
      driver::DeviceHandle handle = 0;
      driver::call.device_get(&handle, device_);
      driver::call.device_uuid(mailbox_.of(rank).gpu.data(), handle);
      mailbox_.of(rank).device = device_;
    } catch (const Error& error) {
      why = error.what();
    }
    try {
      agree_that_all_work(why);  // so that each sees the devices of all
      agree_that_all_work(reach_all());
    } catch (...) {
      settle(), drop();
      throw;
    }
    watch_ = std::thread([this] { watch(); });
  }

  ~PeerTransport() override {
    settle();  // the watchdog ends waits for ranks that are gone
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
    const auto caller = driver::handle_of(stream);
    memory_.collect_releases();
    for (const std::vector<Message>* messages : {&sends, &receives})
      for (const Message& m : *messages) check_slices(m);
    Ticket ticket;
    for (const Message& m : receives)
      if (m.bytes > 0) add(ticket.sources, m, post(m));
    ticket.begins = events_.take(), ticket.sent = events_.take(), ticket.ended = events_.take();
    driver::call.event_record(ticket.begins, caller);
    offer(ticket, receives);
    driver::call.stream_wait_event(stream_, ticket.begins, 0);
    copy(sends);
    driver::call.event_record(ticket.sent, stream_);
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
    const auto caller = driver::handle_of(stream);
    for (const Source& source : ticket.sources) {
      wait_for_posts(source);
      wait_for(caller, Flag::arrived, source.rank, source.arrived);
    }
    driver::call.stream_wait_event(caller, ticket.sent, 0);
    driver::call.event_record(ticket.ended, caller);
    const std::lock_guard lock(mutex_);
    tickets_.at(number).was_waited_for = true;
  }

  bool ranks_share_gpus() const override { return shares_gpu_; }
  std::optional<ArrivalWord> arrival_word(std::uint64_t number, int peer) override {
    if (shares_gpu_) return std::nullopt;
    std::optional<Source> source;
    {
      const std::lock_guard lock(mutex_);
      const auto found = tickets_.find(number);
      if (found == tickets_.end()) return std::nullopt;
      for (const Source& of_ticket : found->second.sources)
        if (of_ticket.rank == peer) source = of_ticket;
    }
    if (!source) return std::nullopt;
    wait_for_posts(*source);
    return ArrivalWord{reinterpret_cast<const std::uint32_t*>(mine(Flag::arrived, peer)), source->arrived,
                       reinterpret_cast<const std::uint32_t*>(on_device_->at(mailbox_.failure_word())), source->slices};
  }

  void* allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void release(void* memory) noexcept override { memory_.release(memory); }

  void fail(const std::string& why) noexcept override {
    std::array<char, 400> text{};  // memory may be what has run out
    std::snprintf(text.data(), text.size(), "rank %d failed: %s", rank_, why.c_str());
    mailbox_.fail(text.data());
  }

 private:
  /// Another rank. Slices of messages between it and this one, those of one call counted together; the posts for which its lane has had
  /// no place yet; and its flags.
  struct Peer {
    std::atomic<std::uint32_t> awaited = 0, sent = 0;
    std::deque<Mailbox::Post> unposted{};
    driver::DevicePointer flags = 0;  ///< of the other rank; 0 once it has left
    std::uint64_t flags_slot = 0;
  };
  /// A rank that sends: its messages of a call have arrived when its flag is at `arrived`. posts: to it, up to this call's last.
  struct Source {
    int rank, slices;
    std::uint64_t posts;
    std::uint32_t arrived = 0;
  };
  struct Ticket {
    std::vector<Source> sources{};
    driver::EventHandle begins = nullptr, sent = nullptr, ended = nullptr;
    bool was_waited_for = false, has_begun = false;
    Clock::time_point begun{};
  };
  Peer& of(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  static void add(std::vector<Source>& sources, const Message& m, std::uint64_t posts) {
    for (Source& source : sources) {
      if (source.rank != m.peer) continue;
      source.slices = std::max(source.slices, m.slices);
      source.posts = posts;
      return;
    }
    sources.push_back({m.peer, m.slices, posts});
  }

  /// All ranks throw when one of them fails.
  void agree_that_all_work(const std::string& why) {
    std::array<char, 256> mine{};
    std::snprintf(mine.data(), mine.size(), "%s", why.c_str());
    std::vector<std::array<char, 256>> all(static_cast<std::size_t>(size_));
    mailbox_.gather(mine.data(), mine.size(), all.data());
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank][0] != 0) base::fail(ErrorCode::unsupported, "peer copies: rank ", rank, ": ", all[rank].data());
  }

  /// Allocates the flags of this rank, sets one on every other rank, and reads what they set here; "" or what does not work.
  std::string reach_all() noexcept {
    try {
      for (int rank = 0; rank < size_; ++rank)
        shares_gpu_ = shares_gpu_ || (rank != rank_ && mailbox_.of(rank).gpu == mailbox_.of(rank_).gpu);
      const auto ranks = static_cast<std::size_t>(size_);
      const std::vector<std::byte> zeros(2 * ranks * flag_bytes);
      void* there = memory_.allocate(zeros.size());
      flags_ = reinterpret_cast<driver::DevicePointer>(there);
      planning::DeviceMemory& memory = cuda::cuda_memory(device_);
      memory.to_device(there, zeros.data(), zeros.size());
      const PeerMemory::Place place = memory_.place_of(there, zeros.size());
      std::vector<PeerMemory::Place> places(ranks);
      mailbox_.gather(&place, sizeof place, places.data());
      std::string why;
      for (int rank = 0; rank < size_ && why.empty(); ++rank) {
        if (rank == rank_) continue;
        try {
          const PeerMemory::Place& theirs = places[static_cast<std::size_t>(rank)];
          of(rank).flags = memory_.mapped(rank, theirs.slot, theirs.generation), of(rank).flags_slot = theirs.slot;
          of(rank).sent = 1, of(rank).awaited = 1;
          write(stream_, Flag::arrived, rank, 1), write(stream_, Flag::ready, rank, 1);
        } catch (const Error& error) {
          why = base::join("it does not reach the GPU of rank ", rank, ": ", error.what());
        }
      }
      if (driver::api().stream_synchronize(stream_) != 0 && why.empty()) why = "a copy to another GPU failed";
      mailbox_.gather(&place, sizeof place, places.data());  // all have written
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

  /// Says that the ticket's messages may come, once their memory is free. Offers are made in order: a flag counts those of all calls.
  void offer(Ticket& ticket, const std::vector<Message>& receives) {
    if (ticket.sources.empty()) return;
    std::uint64_t free_since = last_;
    for (const Message& m : receives) free_since = std::min(free_since, m.bytes > 0 ? m.free_since : free_since);
    {
      const std::lock_guard lock(mutex_);  // the event of a ticket that has ended may be another's soon
      const auto earlier = tickets_.find(free_since);
      if (free_since == 0) {
        driver::call.stream_wait_event(offers_, ticket.begins, 0);
      } else if (earlier != tickets_.end()) {
        driver::call.stream_wait_event(offers_, earlier->second.begins, 0);
      }
    }
    for (Source& source : ticket.sources) {
      source.arrived = of(source.rank).awaited += static_cast<std::uint32_t>(source.slices);
      write(offers_, Flag::ready, source.rank, source.arrived);
    }
  }

  /// Says where a message goes; gives the number of posts to its sender so far. Never waits: two
  /// ranks that both did would wait for each other.
  std::uint64_t post(const Message& m) {
    const PeerMemory::Place place = memory_.place_of(m.data, m.bytes);
    std::deque<Mailbox::Post>& unposted = of(m.peer).unposted;
    unposted.push_back({place.slot, place.generation, place.offset, m.bytes, static_cast<std::uint64_t>(m.slices)});
    post_more();
    return mailbox_.lane(m.peer, rank_).posted.load(std::memory_order_relaxed) + unposted.size();
  }
  /// Until all messages of a source are posted. A rank's host must have done this before its GPU waits for them: later its launches may
  /// wait for a place in the GPU's queue, and nothing would post the rest.
  void wait_for_posts(const Source& source) {
    const std::atomic<std::uint64_t>& posted = mailbox_.lane(source.rank, rank_).posted;
    mailbox_.wait_until([&] { return posted.load(std::memory_order_relaxed) >= source.posts; }, "to take messages");
  }
  /// Posts what lanes have places for.
  void post_more() {
    for (int sender = 0; sender < size_; ++sender) {
      std::deque<Mailbox::Post>& unposted = of(sender).unposted;
      if (unposted.empty()) continue;
      Mailbox::Lane& lane = mailbox_.lane(sender, rank_);
      std::uint64_t number = lane.posted.load(std::memory_order_relaxed);
      for (; !unposted.empty() && number - lane.taken.load(std::memory_order_acquire) < Mailbox::most_posts; unposted.pop_front()) {
        lane.posts[number % Mailbox::most_posts] = unposted.front();
        lane.posted.store(++number, std::memory_order_release);
      }
    }
  }

  static void check_slices(const Message& m) {
    if (m.slices == 1) return;
    const bool rows = m.slices > 1 && m.row_bytes > 0 && m.bytes % m.row_bytes == 0;
    const std::size_t before_last = rows && m.slices < 32 ? m.first_slice_bytes << (m.slices - 2) : 0;
    FOVEAL_CHECK(before_last > 0 && before_last < m.row_bytes, "transport: a message of ", m.bytes, " bytes in ", m.slices,
                 " slices, the first of ", m.first_slice_bytes, " bytes of rows of ", m.row_bytes,
                 "; expected whole rows, and some bytes of each row in every slice");
  }

  /// The messages of one call to one rank.
  struct Outgoing {
    int messages = 0, slices = 1;
    int copies = 0;                 ///< of messages times slices, so far
    std::uint32_t sent_before = 0;  ///< slices of earlier calls
  };

  /// Slice by slice: the first slices of all messages go first.
  void copy(const std::vector<Message>& sends) {
    std::map<int, Outgoing> outgoing;
    int slices = 0;
    for (const Message& m : sends) {
      if (m.bytes == 0) continue;
      Outgoing& to = outgoing[m.peer];
      ++to.messages, to.slices = std::max(to.slices, m.slices);
      slices = std::max(slices, m.slices);
    }
    std::vector<driver::DevicePointer> places(sends.size());
    for (int slice = 0; slice < slices; ++slice)
      for (std::size_t i = 0; i < sends.size(); ++i) {
        const Message& m = sends[i];
        if (m.bytes == 0) continue;
        Outgoing& to = outgoing[m.peer];
        if (slice == 0) places[i] = take_post(m, to);
        if (slice < m.slices) copy_slice(m, places[i], slice);
        if (slice < to.slices && ++to.copies % to.messages == 0)
          write(stream_, Flag::arrived, m.peer, to.sent_before + static_cast<std::uint32_t>(slice) + 1);
      }
  }

  /// Where the receiver wants the next message. Copies of the call's first message to it wait until its GPU is ready.
  driver::DevicePointer take_post(const Message& m, Outgoing& to) {
    Mailbox::Lane& lane = mailbox_.lane(rank_, m.peer);
    const std::uint64_t number = lane.taken.load(std::memory_order_relaxed);
    const auto is_posted = [&] {
      const bool left = mailbox_.has_left(m.peer);  // before its last post is read
      if (lane.posted.load(std::memory_order_acquire) > number) return true;
      if (left) mailbox_.fail_for_left(m.peer, "before it received all messages");
      return false;
    };
    mailbox_.wait_until(is_posted, "to receive messages");
    const Mailbox::Post post = lane.posts[number % Mailbox::most_posts];
    const driver::DevicePointer allocation = memory_.mapped(m.peer, post.allocation, post.generation);
    if (allocation == 0) throw_left(m.peer, "or released their memory before it received all messages");
    if (post.bytes != m.bytes || post.slices != static_cast<std::uint64_t>(m.slices)) {
      fail(base::join("rank ", m.peer, " waits for a message of ", post.bytes, " bytes in ", post.slices, " slices; it has one of ",
                      m.bytes, " in ", m.slices));
      mailbox_.throw_failure();
    }
    if (to.copies == 0) {
      to.sent_before = of(m.peer).sent;
      wait_for(stream_, Flag::ready, m.peer, of(m.peer).sent += static_cast<std::uint32_t>(to.slices));
    }
    lane.taken.store(number + 1, std::memory_order_release);
    return allocation + post.offset;
  }

  void copy_slice(const Message& m, driver::DevicePointer place, int slice) {
    const auto from = reinterpret_cast<driver::DevicePointer>(m.data);
    if (m.slices == 1) return driver::call.copy_on_device(place, from, m.bytes, stream_);
    driver::RowsCopy rows;
    const std::size_t first = slice == 0 ? 0 : m.first_slice_bytes << (slice - 1);
    const std::size_t end = slice + 1 == m.slices ? m.row_bytes : m.first_slice_bytes << slice;
    rows.row_bytes = end - first, rows.rows = m.bytes / m.row_bytes;
    rows.from.device = from + first, rows.to.device = place + first;
    rows.from.row_stride = rows.to.row_stride = m.row_bytes;
    driver::call.copy_rows_on_device(&rows, stream_);
  }

  enum class Flag : std::size_t { arrived, ready };
  static constexpr std::size_t flag_bytes = 256;
  std::size_t flag_at(Flag flag, int peer) const {
    return (static_cast<std::size_t>(flag) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(peer)) * flag_bytes;
  }
  /// Flags of this rank: set by the peer.
  driver::DevicePointer mine(Flag flag, int peer) const { return flags_ + flag_at(flag, peer); }
  /// Later work of the stream waits until the peer has counted up to `value`. Where ranks share a GPU the host waits instead: a GPU has
  /// fewer queues than there are streams, and one that waits can hold up the rank for which it waits.
  void wait_for(driver::StreamHandle stream, Flag flag, int peer, std::uint32_t value) {
    const driver::DevicePointer at = mine(flag, peer);
    if (!shares_gpu_) {
      constexpr unsigned at_least = 0;
      driver::call.stream_wait_value(stream, at, value, at_least);
      return;
    }
    const auto has_come = [&] {
      std::uint32_t found = 0;
      driver::call.copy_to_host(&found, at, sizeof found);
      return static_cast<std::int32_t>(found - value) >= 0;
    };
    mailbox_.wait_until(has_come, "to come as far with its GPU");
  }
  /// Sets the flag that a peer waits for, once earlier work of the stream is done and visible to all.
  void write(driver::StreamHandle stream, Flag flag, int peer, std::uint32_t value) {
    if (of(peer).flags == 0) throw_left(peer, flag == Flag::ready ? "before it sent all messages" : "before it received all messages");
    driver::call.stream_write_value(stream, of(peer).flags + flag_at(flag, rank_), value, 0);
  }
  /// A rank leaves and gives its flags back: first all must have been written that streams are to write there.
  void let_go_of_flags(int rank, std::uint64_t slot) noexcept {
    if (of(rank).flags == 0 || of(rank).flags_slot != slot) return;
    for (const driver::StreamHandle stream : {offers_, stream_}) driver::api().stream_synchronize(stream);
    of(rank).flags = 0;
  }
  [[noreturn]] void throw_left(int rank, const char* what) {
    mailbox_.fail_for_left(rank, what);
    while (true) mailbox_.throw_failure();  // another may be writing its own
  }

  /// The end begins: waits until nothing is under way, or all has failed.
  void settle() noexcept {
    try {
      const driver::Current current(device_);
      for (const driver::StreamHandle stream : {offers_, stream_})
        if (stream != nullptr && !mailbox_.has_failed()) driver::api().stream_synchronize(stream);
    } catch (...) {  // the device is gone
    }
  }
  void drop() noexcept {
    try {
      const driver::Current current(device_);
      memory_.close();
      for (const auto& [number, ticket] : tickets_) give_back(ticket);
      events_.clear();
      for (const driver::StreamHandle stream : {stream_, offers_, rescue_})
        if (stream != nullptr) driver::api().stream_destroy(stream);
      on_device_.reset();
    } catch (...) {  // the device is gone, and all that was on it
    }
  }

  static bool has_ended(const Ticket& ticket) { return ticket.was_waited_for && driver::api().event_query(ticket.ended) == 0; }
  void give_back(const Ticket& ticket) {
    for (const driver::EventHandle event : {ticket.begins, ticket.sent, ticket.ended}) events_.give(event);
  }

  /// The watchdog thread: transfers that take too long and ranks that are gone are failures, which end all waits on this GPU.
  void watch() {
    const driver::Current current(device_);
    std::unique_lock lock(mutex_);
    for (int round = 0; !ends_; ++round) {
      while (!tickets_.empty() && has_ended(tickets_.begin()->second)) {
        give_back(tickets_.begin()->second);
        tickets_.erase(tickets_.begin());
      }
      if (!mailbox_.has_failed()) {
        if (round % 10 == 0) mailbox_.check_processes();  // a host may wait for one that is gone
        check_left();
        if (!tickets_.empty()) check_time(tickets_.begin()->second);
      }
      if (mailbox_.has_failed()) end_waits();
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
  }
  /// What a rank that left has not sent will not come.
  void check_left() noexcept {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_ || !mailbox_.has_left(rank)) continue;
      const Mailbox::Lane& lane = mailbox_.lane(rank, rank_);
      if (lane.taken.load(std::memory_order_acquire) < lane.posted.load(std::memory_order_relaxed))
        mailbox_.fail_for_left(rank, "before it sent all messages");
    }
  }
  void check_time(Ticket& first) {
    if (!first.has_begun && driver::api().event_query(first.begins) == 0) first.has_begun = true, first.begun = Clock::now();
    if (first.has_begun && std::chrono::duration<double>(Clock::now() - first.begun).count() > time_limit_)
      mailbox_.fail(base::join("rank ", rank_, " waited ", time_limit_, " s for the others").c_str());
  }
  /// Waiting kernels see the failure themselves; waiting streams do not.
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
  PeerMemory memory_;
  std::optional<MappedMailbox> on_device_;
  bool shares_gpu_ = false;  ///< then a waiting kernel could keep the rank for which it waits from starting its own
  driver::StreamHandle stream_ = nullptr, offers_ = nullptr, rescue_ = nullptr;
  driver::DevicePointer flags_ = 0;  ///< of this rank
  Events events_;
  std::vector<Peer> peers_;
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
  check_time_limit("peer_ranks", options.time_limit);
  if (!peer_reachable(id))
    base::fail(ErrorCode::unsupported, "peer_ranks: rank ", rank, " is on another host than rank 0; expected one host, or nccl_ranks()");
  return std::make_shared<PeerTransport>(id.substr(0, id.find(' ')), rank, size, device, options);
}

}  // namespace foveal::dist
