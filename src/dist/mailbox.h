#pragma once
// Shared memory of the ranks of one host: small messages between their processes, and the handles of device memory. A process that ends in
// any way is noticed by the others: the operating system drops its lock on the file.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/jit/driver.h"

namespace foveal::dist {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

class Mailbox {
 public:
  static constexpr int most_ranks = 64;
  static constexpr std::size_t most_allocations = 2048, most_posts = 256, most_gathered = 4096;

  /// Device memory of a rank that others may write to. generation: odd while it lives.
  struct Allocation {
    std::atomic<std::uint64_t> generation;
    cuda::driver::IpcHandle handle;
    std::uint64_t address, bytes;
  };
  /// Where the receiver wants the next message, and in how many slices.
  struct Post {
    std::uint64_t allocation, generation, offset, bytes, slices;
  };
  /// From one rank to another.
  struct Lane {
    alignas(64) std::atomic<std::uint64_t> posted;  ///< by the receiver's host
    alignas(64) std::atomic<std::uint64_t> taken;   ///< by the sender's host
    Post posts[most_posts];
  };
  enum class State : std::uint32_t { absent, here, left };
  struct Rank {
    std::atomic<State> state;
    std::uint64_t process;                                 ///< the same for ranks of one process
    int device;                                            ///< as that process counts
    std::array<char, 16> gpu;                              ///< its UUID
    std::atomic<std::uint64_t> releases;                   ///< allocations that it released
    std::atomic<std::uint64_t> releases_seen[most_ranks];  ///< by it, of each other rank
    Allocation allocations[most_allocations];
    std::atomic<std::uint64_t> gathered;  ///< rounds of gather() that it has taken part in
    std::byte memory[2][most_gathered];   ///< of the last two rounds
  };

  /// A name that no other mailbox has.
  static std::string new_name();
  /// Collective: rank 0 creates it, and all wait for each other, at most this many seconds. Throws communication.
  Mailbox(const std::string& name, int rank, int size, double time_limit);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  Rank& of(int rank) { return ranks_[rank]; }
  Lane& lane(int from, int to) { return lanes_[from * size_ + to]; }
  void* memory() const { return memory_; }
  std::size_t bytes() const { return bytes_; }

  /// All-gather of small messages.
  void gather(const void* mine, std::size_t bytes, void* all);

  /// Called again and again while this rank waits.
  void while_waiting(std::function<void()> fn) { while_waiting_ = std::move(fn); }
  /// Waits until ready() holds; throws what failed() says, or communication after the time limit. what: for its message.
  template <class Ready>
  void wait_until(Ready&& ready, const char* what) {
    for (long tries = 0; !ready(); ++tries) pause(tries, what);
  }

  /// The first failure of any rank is the failure of all.
  void fail(const char* why) noexcept;
  bool has_failed() const;
  const void* failure_word() const;  ///< 32 bits, 0 unless some rank failed
  void throw_failure() const;
  /// Fails when the process of a rank is gone.
  void check_processes() noexcept;
  /// Has the rank left in order? Then all is written that it ever wrote.
  bool has_left(int rank) const { return ranks_[rank].state.load(std::memory_order_acquire) == State::left; }
  /// Fails, as a rank that left will not do what is waited for.
  void fail_for_left(int rank, const char* what) noexcept;

 private:
  struct Header;
  void pause(long tries, const char* what);
  void attach(const std::string& name);

  int rank_, size_;
  double time_limit_;
  int file_ = -1;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  Header* header_ = nullptr;
  Rank* ranks_ = nullptr;
  Lane* lanes_ = nullptr;
  std::uint64_t rounds_ = 0;
  double waited_since_ = 0;
  std::function<void()> while_waiting_;
};

/// Identifies this host and its shared memory: equal for processes that can share a mailbox.
std::string mailbox_host();

}  // namespace foveal::dist
