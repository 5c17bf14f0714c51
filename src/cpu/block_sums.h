#pragma once
// Accumulators of dk and dv by blocks of keys, in the layout of PackedBackwardOps. A block's first products overwrite.
#include "cpu/backward_pass.h"

namespace foveal::cpu {

/// Pointers to the rows of a block; null past its last key.
struct KeyPointers {
  static constexpr int most = 128;  ///< keys of a block

  KeyPointers(const KeyRows& rows, int keys) : stride(rows.stride), dtype(rows.dtype) {
    const auto bytes = rows.row_stride * static_cast<std::int64_t>(size_of(rows.dtype));
    for (int key = 0; key < keys; ++key) row[key] = static_cast<const char*>(rows.data) + key * bytes;
  }
  LaneRows in(int keys) const { return {row, keys, stride, dtype}; }

  const void* row[most] = {};
  std::int64_t stride;
  DType dtype;
};

class BlockSums {
 public:
  struct Memory {
    float *dk = nullptr, *dv = nullptr;
    bool* used = nullptr;  ///< whether the block has been written
  };

  BlockSums(const Setup<float>& setup, const PackedBackwardOps& ops)
      : s_(setup),
        ops_(ops),
        dk_floats_(static_cast<std::int64_t>(ops.acc_bytes(ops.keys, setup.dim) / sizeof(float))),
        dv_floats_(static_cast<std::int64_t>(ops.acc_bytes(ops.keys, setup.dim_v) / sizeof(float))) {}

  std::size_t bytes_of_block() const { return static_cast<std::size_t>(dk_floats_ + dv_floats_) * sizeof(float); }
  Layout<Memory> layout(std::int64_t blocks) const {
    Layout<Memory> layout;
    layout.array(&Memory::dk, static_cast<std::size_t>(blocks * dk_floats_));
    layout.array(&Memory::dv, static_cast<std::size_t>(blocks * dv_floats_));
    layout.array(&Memory::used, static_cast<std::size_t>(blocks));
    return layout;
  }
  Memory at(const Memory& sums, std::int64_t block) const {
    return {sums.dk + block * dk_floats_, sums.dv + block * dv_floats_, sums.used + block};
  }

  /// Writes a block: the sum over shares, in order, of those that were used. at: the first share.
  template <class Call>
  void write(const Call& call, const Sequence& sequence, std::int32_t kv_head, std::int64_t block, const Memory& at,
             std::int64_t shares) const {
    const float *dk[Shares::wanted_tasks], *dv[Shares::wanted_tasks];
    int count = 0;
    for (std::int64_t share = 0; share < shares; ++share) {
      const Memory part = this->at(at, share * s_.planner.max_blocks());
      if (*part.used) dk[count] = part.dk, dv[count++] = part.dv;
    }
    const int keys = s_.block_keys(sequence, static_cast<std::int32_t>(block));
    const auto write = [&](const HeadRows& tensor, const float* const* parts, int dim, double factor) {
      void* rows[KeyPointers::most];
      for (int key = 0; key < keys; ++key) rows[key] = tensor.row(sequence.batch, sequence.kv_begin + block * ops_.keys + key, kv_head);
      ops_.write_keys(parts, count, dim, static_cast<float>(factor), {rows, keys, tensor.stride, tensor.dtype});
    };
    write(call.dk, dk, s_.dim, s_.problem.scale);
    write(call.dv, dv, s_.dim_v, 1);
  }

 private:
  const Setup<float>& s_;
  const PackedBackwardOps& ops_;
  const std::int64_t dk_floats_, dv_floats_;
};

}  // namespace foveal::cpu
