#include "dist/peer_memory.h"

#include <chrono>
#include <iterator>
#include <thread>

#include "base/check.h"
#include "base/divide.h"
#include "cuda/cuda_memory.h"

namespace foveal::dist {

namespace driver = cuda::driver;

PeerMemory::PeerMemory(Mailbox& mailbox, int rank, int size, int device)
    : mailbox_(mailbox), rank_(rank), size_(size), device_(device), mapped_(static_cast<std::size_t>(size)) {}

/// Are all ranks threads of this process? Then nothing needs a handle.
bool PeerMemory::is_alone() const {
  for (int rank = 0; rank < size_; ++rank)
    if (mailbox_.of(rank).process != mailbox_.of(rank_).process) return false;
  return true;
}

void* PeerMemory::allocate(std::size_t bytes) {
  collect_releases();
  Mailbox::Rank& mine = mailbox_.of(rank_);
  for (std::size_t slot = 0; slot < Mailbox::most_allocations; ++slot) {
    Mailbox::Allocation& allocation = mine.allocations[slot];
    if (allocation.generation.load() % 2 == 1 || released_.count(slot) != 0) continue;
    constexpr std::size_t page = std::size_t{2} << 20;  // what another process can map
    const std::size_t whole = base::round_up(bytes, page);
    void* made = cuda::cuda_memory(device_).allocate(whole);
    const driver::Current current(device_);
    const driver::Result result =
        is_alone() ? 0 : driver::api().ipc_handle(&allocation.handle, reinterpret_cast<driver::DevicePointer>(made));
    if (result != 0) cuda::cuda_memory(device_).release(made);
    driver::check(result, "cuIpcGetMemHandle");
    allocation.address = reinterpret_cast<std::uint64_t>(made), allocation.bytes = whole;
    allocation.generation.fetch_add(1, std::memory_order_release);
    mine_.emplace(allocation.address, slot);
    return made;
  }
  base::fail(ErrorCode::unsupported, "peer copies: more than ", Mailbox::most_allocations, " buffers on a rank");
}

void PeerMemory::release(void* memory) noexcept {
  const auto found = mine_.find(reinterpret_cast<std::uint64_t>(memory));
  if (found == mine_.end()) return;
  Mailbox::Rank& mine = mailbox_.of(rank_);
  mine.allocations[found->second].generation.fetch_add(1, std::memory_order_release);
  released_.emplace(found->second, Released{memory, mine.releases.fetch_add(1, std::memory_order_release) + 1});
  mine_.erase(found);
}

PeerMemory::Place PeerMemory::place_of(const void* memory, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uint64_t>(memory);
  auto found = mine_.upper_bound(address);
  FOVEAL_CHECK(found != mine_.begin(), "peer copies: a message to memory that was not allocated for it");
  --found;
  const Mailbox::Allocation& allocation = mailbox_.of(rank_).allocations[found->second];
  const Place place{found->second, allocation.generation.load(std::memory_order_relaxed), address - found->first};
  FOVEAL_CHECK(place.offset + bytes <= allocation.bytes, "peer copies: a message to memory that was not allocated for it");
  return place;
}

driver::DevicePointer PeerMemory::mapped(int rank, std::uint64_t slot, std::uint64_t generation) {
  Mailbox::Rank& theirs = mailbox_.of(rank);
  const Mailbox::Allocation& allocation = theirs.allocations[slot];
  Mapped& known = mapped_[static_cast<std::size_t>(rank)][slot];
  if (allocation.generation.load(std::memory_order_acquire) != generation) return 0;
  if (known.generation == generation) return known.address;
  unmap(known);
  if (theirs.process == mailbox_.of(rank_).process) {
    reach_in_process(theirs.device);
    known.address = allocation.address;
  } else {
    constexpr unsigned reach_on_demand = 1;
    driver::call.ipc_open(&known.address, allocation.handle, reach_on_demand);
    known.opened = true;
  }
  known.generation = generation;
  return known.address;
}

void PeerMemory::reach_in_process(int device) const {
  if (device == device_) return;
  driver::DeviceHandle mine = 0, theirs = 0;
  driver::call.device_get(&mine, device_);
  driver::call.device_get(&theirs, device);
  int can = 0;
  driver::call.can_access_peer(&can, mine, theirs);
  if (can == 0) base::fail(ErrorCode::unsupported, "cuda:", device_, " does not reach the memory of cuda:", device);
  constexpr driver::Result reaches_already = 704;
  const driver::Result result = driver::api().enable_peer_access(driver::device_facts(device).context, 0);
  if (result != reaches_already) driver::check(result, "cuCtxEnablePeerAccess");
}

void PeerMemory::unmap(Mapped& mapped) {
  if (mapped.opened) driver::api().ipc_close(mapped.address);
  mapped = {};
}

void PeerMemory::collect_releases() {
  const driver::Current current(device_);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    Mailbox::Rank& theirs = mailbox_.of(rank);
    const std::uint64_t releases = theirs.releases.load(std::memory_order_acquire);
    std::atomic<std::uint64_t>& seen = mailbox_.of(rank_).releases_seen[rank];
    if (seen.load(std::memory_order_relaxed) == releases) continue;
    for (auto& [slot, mapped] : mapped_[static_cast<std::size_t>(rank)]) {
      if (mapped.generation == 0 || mapped.generation == theirs.allocations[slot].generation.load(std::memory_order_acquire)) continue;
      if (before_unmapping_) before_unmapping_(rank, slot);
      unmap(mapped);
    }
    seen.store(releases, std::memory_order_release);
  }
  for (auto released = released_.begin(); released != released_.end();) {
    bool all = true;
    for (int rank = 0; rank < size_; ++rank)
      all = all && (rank == rank_ || mailbox_.of(rank).releases_seen[rank_].load(std::memory_order_acquire) >= released->second.number);
    if (all) cuda::cuda_memory(device_).release(released->second.memory);
    released = all ? released_.erase(released) : std::next(released);
  }
}

void PeerMemory::close() {
  for (auto& of_rank : mapped_)
    for (auto& [slot, mapped] : of_rank) unmap(mapped);
  while (!mine_.empty()) release(reinterpret_cast<void*>(mine_.begin()->first));
  for (int rank = 0; rank < size_; ++rank)
    mailbox_.of(rank_).releases_seen[rank].store(~std::uint64_t{0}, std::memory_order_release);  // nothing is mapped any more
  // What another rank still maps stays until it unmaps that, or until its process ends.
  const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  for (collect_releases(); !released_.empty() && !mailbox_.has_failed() && std::chrono::steady_clock::now() < latest; collect_releases())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace foveal::dist
