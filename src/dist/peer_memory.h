#pragma once
// Device memory that peers write to: allocations of this rank, published in the mailbox, and those of other ranks, mapped here.
// Memory is freed once all others have unmapped it.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "cuda/jit/driver.h"
#include "dist/mailbox.h"

namespace foveal::dist {

class PeerMemory {
 public:
  PeerMemory(Mailbox& mailbox, int rank, int size, int device);

  void* allocate(std::size_t bytes);
  /// Freed by collect_releases(), not before the others have let go of it.
  void release(void* memory) noexcept;

  /// A place in an allocation of this rank.
  struct Place {
    std::uint64_t slot = 0, generation = 0, offset = 0;
  };
  Place place_of(const void* memory, std::size_t bytes) const;
  /// Where an allocation of another rank is, for this device; 0 when the rank has released it.
  cuda::driver::DevicePointer mapped(int rank, std::uint64_t slot, std::uint64_t generation);

  /// Called before what another rank has released is unmapped; until then the memory is there.
  void before_unmapping(std::function<void(int rank, std::uint64_t slot)> fn) { before_unmapping_ = std::move(fn); }
  /// Unmaps what others have released, and frees what all others have unmapped.
  void collect_releases();
  /// Unmaps and releases everything, and waits up to a second for the others to do so.
  void close();

 private:
  struct Mapped {
    std::uint64_t generation = 0;
    cuda::driver::DevicePointer address = 0;
    bool opened = false;  ///< of another process
  };
  struct Released {
    void* memory;
    std::uint64_t number;  ///< Mailbox::Rank::releases
  };
  bool is_alone() const;
  void reach_in_process(int device) const;
  static void unmap(Mapped& mapped);

  Mailbox& mailbox_;
  const int rank_, size_, device_;
  std::map<std::uint64_t, std::size_t> mine_;            ///< slots of allocations, by their addresses
  std::map<std::size_t, Released> released_;             ///< by their slots
  std::vector<std::map<std::uint64_t, Mapped>> mapped_;  ///< of each rank, by their slots
  std::function<void(int rank, std::uint64_t slot)> before_unmapping_;
};

}  // namespace foveal::dist
