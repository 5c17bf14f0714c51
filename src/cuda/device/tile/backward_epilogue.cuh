#pragma once
// Epilogue of the backward kernels: dK and dV from registers to global memory. Where several tasks share a kv head they are
// added to fp32 sums there (launch/group_sums.h).
#include "tile/backward_gradients.cuh"
#include "tile/group_sum.cuh"
#include "tile/part.cuh"

namespace foveal::device {

constexpr u32 kKeysReadBarrier = 4;  // one for each warpgroup of consumers; below are the kernels' own

/// All phases of a consumer warpgroup.
struct BackwardWarpgroup : BackwardGradients {
  using BackwardGradients::BackwardGradients;

  /// Any pair of the task's head group, at the end of the walk.
  FOVEAL_DEVICE Position base_of_group(const BackwardTask& work) const {
    Position base = work.base(args.attention);
    base.head = work.task.head * args.attention.group_size;
    return base;
  }

  /// Parameter gradients that follow from dK, while K is still in shared memory.
  FOVEAL_DEVICE void add_gradients_of_dk(const BackwardTask& work, const float (&dk)[kDim / 2]) const {
    if constexpr (kConfig.collects && any_follows_from_dk(0)) {
      float sum[2] = {};                                   // of the thread's two keys
      const auto add = [](float dk, u32 key, float sum) {  // K may be NaN if no query keeps the key
        return dk == 0 ? sum : fmaf(dk, to_real(Element{static_cast<u16>(key)}), sum);
      };
#pragma unroll
      for (int i = 0; i < kDim / 2; i += 2) {
        const int row = first_key + fragment_first_row(thread) + 8 * fragment_row(i);
        const u32 two = load_word(pipelines.key_tile().block_of_row(row, fragment_column(i)) + 2 * fragment_first_column(thread));
        float& of_key = sum[fragment_row(i)];
        of_key = add(dk[i], two, add(dk[i + 1], two >> 16, of_key));
      }
      const auto exists = [&](int row) { return key_of(work) + 8 * row < work.sequence.len_kv; };
      add_reads_of_dk(args.attention, base_of_group(work), (exists(0) ? sum[0] : 0.0f) + (exists(1) ? sum[1] : 0.0f));
      // One thread returns K to TMA: not before all warps have loaded theirs.
      fence_async_proxy();
      named_barrier_sync(kKeysReadBarrier + first_key / 64, 128);
    }
  }

  FOVEAL_DEVICE void write_dk(const BackwardTask& work, float (&dk)[kDim / 2]) const {
    const float scale = args.scale;
    if constexpr (kHasScore) {
      const Position base = base_of_group(work);
      const float unit = slope_unit({1, scale}, base, args.attention.score);
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) dk[i] = apply_unit(dk[i], unit);
    }
    write_rows<kProblem.head_dim>(args.attention.dk, work, dk, scale);
  }

  template <int columns, int count>
  FOVEAL_DEVICE void write_rows(const Tensor& tensor, const BackwardTask& work, const float (&acc)[count], float factor) const {
    if (tensor.data == nullptr) return;
    const int key = key_of(work);
    if constexpr (kConfig.splits_groups) {
      float* to = group_sum<columns>(tensor, work.sequence, work.task.head, work.first_kv() + first_key) + 4 * thread;
#pragma unroll
      for (int i = 0; i < count; i += 4)
        add_four(to + i * 128, acc[i] * factor, acc[i + 1] * factor, acc[i + 2] * factor, acc[i + 3] * factor);
      return;
    }
    if constexpr (kProblem.part) {
      float* rows = static_cast<float*>(tensor.data) + work.task.batch * tensor.batch + work.task.head * tensor.head;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = key + 8 * r;
        add_row(rows + static_cast<i64>(row) * tensor.seq, acc, r, factor, args.attention.part.adds_to_kv ? 1.0f : 0.0f,
                row < work.sequence.len_kv ? columns : 0, thread % 32);
      }
      return;
    }
    if constexpr (kKeys == KeyRows::gathered) {
      float* rows = static_cast<float*>(tensor.data) + work.task.head * tensor.head + work.sequence.first_kv * tensor.seq;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = key + 8 * r;
        store_row(rows + static_cast<i64>(row) * tensor.seq, acc, r, factor, row < work.sequence.len_kv ? columns : 0, thread % 32);
      }
      return;
    }
    u16* base = static_cast<u16*>(tensor.data) + work.task.batch * tensor.batch + work.task.head * tensor.head;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = key + 8 * r;
      store_row<Element>(base + (work.sequence.first_kv + row) * tensor.seq, acc, r, factor, row < work.sequence.len_kv ? columns : 0,
                         thread % 32);
    }
  }
};

}  // namespace foveal::device
