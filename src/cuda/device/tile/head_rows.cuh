#pragma once
// Tile rows are consecutive queries of one head.
#include "tile/forward_sm90.cuh"

namespace foveal::device {

/// The rows of a warpgroup, two for each thread.
struct HeadRows {
  const Sm90Args& args;
  const int group;   // warpgroup index
  const int thread;  // within the warpgroup

  FOVEAL_DEVICE static int kv_head(const Sm90Args& args, int head) { return head / args.attention.group_size; }
  FOVEAL_DEVICE static void load(const Sm90Args& args, const Pipelines& pipelines, u32 use, int row, int head, int batch) {
    const u32 to = pipelines.query_tile(use).address, full = pipelines.query.full_barrier(use);
    mbarrier_arrive_expect_bytes(full, kShared.query_bytes);
    load_tile<kBlockQ, kDim>(to, args.q, full, row, head, batch);
  }

  FOVEAL_DEVICE int row_of(const ForwardTask& work) const { return work.first_query() + 64 * group + fragment_first_row(thread); }
  FOVEAL_DEVICE int query_of(const ForwardTask& work, int r) const { return row_of(work) + 8 * r; }
  FOVEAL_DEVICE int head_of(const ForwardTask& work, int) const { return work.task.head; }
  FOVEAL_DEVICE bool exists(const ForwardTask& work, int r) const { return query_of(work, r) < work.sequence.len_q; }

  /// The pair of register i; partial: clamped to the last row and key.
  template <bool partial>
  FOVEAL_DEVICE Position position(const ForwardTask& work, int i) const {
    const int row = row_of(work), key = work.walk.tile * kBlockKv + fragment_first_column(thread);
    const int origin_q = row + static_cast<int>(args.attention.q_offset), origin_kv = key + static_cast<int>(args.attention.kv_offset);
    int q_step = 8 * fragment_row(i), kv_step = fragment_column(i);
    if constexpr (partial) {
      q_step = min(q_step, work.sequence.len_q - 1 - row);
      kv_step = min(kv_step, work.sequence.len_kv - 1 - key);
    }
    return {work.task.batch,      work.task.head, origin_q + q_step, origin_kv + kv_step,   work.sequence.len_q,
            work.sequence.len_kv, q_step,         kv_step,           partial ? 0 : kBlockKv};
  }
};

}  // namespace foveal::device
