#include "dist/mailbox.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/check.h"
#include "base/divide.h"
#include "base/hash.h"

namespace foveal::dist {
namespace {

constexpr std::uint64_t format = 0x666f7665616c0002;  ///< of what lies in the memory

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::uint64_t random_bits() {
  std::uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits))
    base::fail(ErrorCode::communication, "peer_id: no random bits: ", std::strerror(errno));
  return bits;
}

std::uint64_t this_process() {
  static const std::uint64_t bits = random_bits();
  return bits;
}

/// A lock on one byte of the file: the rank's. It belongs to the open file, so it is gone when the process is.
struct flock byte_of(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = rank, lock.l_len = 1;
  return lock;
}

}  // namespace

struct Mailbox::Header {
  std::atomic<std::uint64_t> format;
  std::uint32_t size;
  std::atomic<std::uint32_t> attached, failed;  ///< failed: 1 while the text is written, then 2
  std::array<char, 512> failure;
};

std::string mailbox_host() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat memory {};
  if (stat("/dev/shm", &memory) != 0) return base::join("no shared memory of process ", this_process());
  return base::join(boot, ' ', memory.st_dev, ' ', memory.st_ino);
}

std::string Mailbox::new_name() { return "/foveal-" + base::to_hex({random_bits(), random_bits()}); }

Mailbox::Mailbox(const std::string& name, int rank, int size, double time_limit) : rank_(rank), size_(size), time_limit_(time_limit) {
  const auto up = [](std::size_t bytes) { return base::round_up(bytes, std::size_t{4096}); };
  const auto ranks = static_cast<std::size_t>(size);
  bytes_ = up(sizeof(Header)) + up(ranks * sizeof(Rank)) + up(ranks * ranks * sizeof(Lane));
  try {
    attach(name);
    auto* base = static_cast<std::byte*>(memory_);
    header_ = reinterpret_cast<Header*>(base);
    ranks_ = reinterpret_cast<Rank*>(base + up(sizeof(Header)));
    lanes_ = reinterpret_cast<Lane*>(base + up(sizeof(Header)) + up(ranks * sizeof(Rank)));
    if (rank == 0) {
      header_->size = static_cast<std::uint32_t>(size);
      header_->format.store(format, std::memory_order_release);
    }
    wait_until([&] { return header_->format.load(std::memory_order_acquire) != 0; }, "to make their shared memory");
    if (header_->format.load() != format || header_->size != ranks)
      base::fail(ErrorCode::communication, "peer_ranks: the others have ", header_->size, " ranks, or another version of foveal");
    struct flock lock = byte_of(rank);
    if (fcntl(file_, F_OFD_SETLK, &lock) != 0)
      base::fail(ErrorCode::communication, "peer_ranks: rank ", rank, " is there already (", std::strerror(errno), ")");
    of(rank).process = this_process();
    of(rank).state.store(State::here, std::memory_order_release);
    header_->attached.fetch_add(1);
    wait_until([&] { return header_->attached.load() == ranks; }, "to come: are all of them processes of this host?");
    if (rank == 0) shm_unlink(name.c_str());
  } catch (...) {
    if (rank == 0) shm_unlink(name.c_str());
    if (memory_ != nullptr) munmap(memory_, bytes_);
    if (file_ >= 0) close(file_);
    throw;
  }
}

void Mailbox::attach(const std::string& name) {
  const auto failed = [&](const char* call) {
    base::fail(ErrorCode::communication, "peer_ranks: ", call, ": ", std::strerror(errno), "; expected ", bytes_,
               " bytes of shared memory (/dev/shm)");
  };
  if (rank_ == 0) {
    file_ = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file_ < 0) failed("shm_open");
    if (const int error = posix_fallocate(file_, 0, static_cast<off_t>(bytes_)); error != 0) errno = error, failed("posix_fallocate");
  } else {
    wait_until(
        [&] {
          if (file_ < 0) file_ = shm_open(name.c_str(), O_RDWR, 0600);
          struct stat is {};
          return file_ >= 0 && fstat(file_, &is) == 0 && static_cast<std::size_t>(is.st_size) >= bytes_;
        },
        "to make their shared memory: are all of them processes of this host?");
  }
  void* made = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (made == MAP_FAILED) failed("mmap");
  memory_ = made;
}

Mailbox::~Mailbox() {
  of(rank_).state.store(State::left, std::memory_order_release);
  munmap(memory_, bytes_);
  close(file_);
}

void Mailbox::gather(const void* mine, std::size_t bytes, void* all) {
  const auto* from = static_cast<const std::byte*>(mine);
  auto* to = static_cast<std::byte*>(all);
  // A rank that takes part in a round has read all of the one before: memory of two rounds is enough.
  for (std::size_t at = 0; at < bytes; at += most_gathered) {
    const std::size_t count = std::min(most_gathered, bytes - at);
    const std::uint64_t round = ++rounds_;
    std::memcpy(of(rank_).memory[round % 2], from + at, count);
    of(rank_).gathered.store(round, std::memory_order_release);
    for (int rank = 0; rank < size_; ++rank) {
      const auto takes_part = [&] {
        const bool left = has_left(rank);  // before its last round is read
        if (of(rank).gathered.load(std::memory_order_acquire) >= round) return true;
        if (left) fail_for_left(rank, "before a gather");
        return false;
      };
      wait_until(takes_part, "to take part in a gather");
      std::memcpy(to + static_cast<std::size_t>(rank) * bytes + at, of(rank).memory[round % 2], count);
    }
  }
}

void Mailbox::pause(long tries, const char* what) {
  constexpr long spins = 20000;
  if (header_ != nullptr) throw_failure();
  if (while_waiting_) while_waiting_();
  if (tries == 0) waited_since_ = seconds();
  if (tries < spins) return;
  if (seconds() - waited_since_ > time_limit_) {
    const std::string why = base::join("rank ", rank_, " waited ", time_limit_, " s for the other ranks ", what);
    if (header_ == nullptr) base::fail(ErrorCode::communication, "context parallelism: ", why);
    fail(why.c_str());
    throw_failure();
  }
  if (tries < 2 * spins) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void Mailbox::fail(const char* why) noexcept {
  std::uint32_t none = 0;
  if (!header_->failed.compare_exchange_strong(none, 1)) return;
  std::snprintf(header_->failure.data(), header_->failure.size(), "%s", why);
  header_->failed.store(2, std::memory_order_release);
}

void Mailbox::fail_for_left(int rank, const char* what) noexcept {
  char why[96];
  std::snprintf(why, sizeof why, "rank %d left %s", rank, what);
  fail(why);
}

const void* Mailbox::failure_word() const { return &header_->failed; }

bool Mailbox::has_failed() const { return header_->failed.load(std::memory_order_acquire) == 2; }

void Mailbox::throw_failure() const {
  if (has_failed()) base::fail(ErrorCode::communication, "context parallelism: ", header_->failure.data());
}

void Mailbox::check_processes() noexcept {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || has_left(rank)) continue;
    struct flock lock = byte_of(rank);
    if (fcntl(file_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK) continue;
    if (has_left(rank)) continue;  // meanwhile
    char why[96];
    std::snprintf(why, sizeof why, "rank %d ended: its process is gone", rank);
    return fail(why);
  }
}

}  // namespace foveal::dist
