#pragma once
// Keys and values, packed once for all queries of their kv head.
#include <algorithm>
#include <cstdint>

#include "cpu/setup.h"

namespace foveal::cpu {

class PackedKeys {
 public:
  struct Memory {
    void *k = nullptr, *v = nullptr;
    std::int64_t* first_block = nullptr;  ///< of each group
  };

  PackedKeys(const Setup<float>& setup, const PackedLayout& ops)
      : s_(setup),
        ops_(ops),
        block_(setup.geometry.block_kv),
        k_bytes_(ops.k_bytes(block_, setup.dim)),
        v_bytes_(ops.v_bytes(block_, setup.dim_v)) {}

  Layout<Memory> layout() const {
    const auto blocks = static_cast<std::size_t>(s_.planner.max_blocks());
    Layout<Memory> layout;
    layout.bytes(&Memory::k, blocks * k_bytes_);
    layout.bytes(&Memory::v, blocks * v_bytes_);
    layout.array(&Memory::first_block, static_cast<std::size_t>(s_.planner.max_groups()));
    return layout;
  }
  /// Bytes per worker: a copy of a block that spans pages.
  std::size_t scratch_bytes() const { return KeyBlocks::copy_bytes(s_.problem, block_, std::max(s_.dim, s_.dim_v)); }
  /// Blocks that fit in L2.
  std::int32_t chunk() const { return std::max(1, static_cast<int>(l2_share / (k_bytes_ + v_bytes_))); }

  char* k(const Memory& memory, std::int64_t block) const {
    return static_cast<char*>(memory.k) + static_cast<std::size_t>(block) * k_bytes_;
  }
  char* v(const Memory& memory, std::int64_t block) const {
    return static_cast<char*>(memory.v) + static_cast<std::size_t>(block) * v_bytes_;
  }

  /// Packs a part of a group's blocks. False: v is not all finite.
  bool pack(const Memory& memory, const KeyBlocks& k, const KeyBlocks& v, const Work& work, std::size_t g, std::int64_t part,
            std::int64_t parts, void* scratch) const {
    const TileGroup& group = work.groups[g];
    const Sequence& sequence = work.sequence(group);
    const std::int64_t blocks = sequence.blocks(block_);
    bool finite = true;
    for (std::int64_t b = blocks * part / parts; b < blocks * (part + 1) / parts; ++b) {
      const int keys = s_.block_keys(sequence, static_cast<std::int32_t>(b));
      const auto rows = [&](const KeyBlocks& from) { return from.block(sequence, b * block_, keys, group.kv_head, scratch); };
      ops_.pack_k(rows(k), keys, block_, s_.dim, this->k(memory, memory.first_block[g] + b));
      finite &= ops_.pack_v(rows(v), keys, block_, s_.dim_v, this->v(memory, memory.first_block[g] + b));
    }
    return finite;
  }

 private:
  const Setup<float>& s_;
  const PackedLayout& ops_;
  const int block_;
  const std::size_t k_bytes_, v_bytes_;
};

}  // namespace foveal::cpu
