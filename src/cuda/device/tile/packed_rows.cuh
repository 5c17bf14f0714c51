#pragma once
// GQA packing, for few queries: tile row r is query r / packed_heads of head r % packed_heads of the group; a task's head is a kv head.
#include "tile/forward_sm90.cuh"

namespace foveal::device {

/// The rows of a warpgroup, two for each thread.
struct PackedRows {
  const Sm90Args& args;
  const int group;   // warpgroup index
  const int thread;  // within the warpgroup

  FOVEAL_DEVICE static int kv_head(const Sm90Args&, int head) { return head; }
  FOVEAL_DEVICE static void load(const Sm90Args& args, const Pipelines& pipelines, u32 use, int row, int head, int batch) {
    const u32 to = pipelines.query_tile(use).address, full = pipelines.query.full_barrier(use);
    mbarrier_arrive_expect_bytes(full, chunk_count(kDim) * kQueries * kConfig.packed_heads * kChunkRowBytes);
    if constexpr (kConfig.packed_heads == 1) {
      load_tile<kBlockQ, kDim>(to, args.q, full, row, head, batch);
    } else {
      for (int chunk = 0; chunk < chunk_count(kDim); ++chunk)
        tma_load(to + chunk * QueryTile::kChunkBytes, args.q, full, chunk * kChunkColumns, 0, row, head, batch);
    }
  }
  /// By all threads, before any load: zeroes leftover rows, which no load writes.
  FOVEAL_DEVICE static void clear_leftover_rows(const Pipelines& pipelines) {
    if constexpr (kQueries * kConfig.packed_heads < kBlockQ) {
      for (int i = threadIdx.x; i < kConfig.query_stages * kShared.query_bytes / 16; i += kThreads)
        store_zeros(pipelines.query_tile(0).address + 16 * i);
      fence_async_proxy();
    }
  }

  FOVEAL_DEVICE int row_in_tile(int r) const { return 64 * group + fragment_first_row(thread) + 8 * r; }
  FOVEAL_DEVICE int query_of(const ForwardTask& work, int r) const { return work.first_query() + row_in_tile(r) / kConfig.packed_heads; }
  FOVEAL_DEVICE int head_of(const ForwardTask& work, int r) const {
    return work.task.head * kConfig.packed_heads + row_in_tile(r) % kConfig.packed_heads;
  }
  FOVEAL_DEVICE bool exists(const ForwardTask& work, int r) const {
    return query_of(work, r) < work.sequence.len_q && (kConfig.packed_heads == 1 || row_in_tile(r) < kQueries * kConfig.packed_heads);
  }

  /// The pair of register i; the query is clamped to the last one. partial: so is the key.
  template <bool partial>
  FOVEAL_DEVICE Position position(const ForwardTask& work, int i) const {
    const int r = fragment_row(i), query = min(query_of(work, r), work.sequence.len_q - 1),
              key = work.walk.tile * kBlockKv + fragment_first_column(thread);
    const int kv_step = partial ? min(fragment_column(i), work.sequence.len_kv - 1 - key) : fragment_column(i);
    return {work.task.batch,
            head_of(work, r),
            query + static_cast<int>(args.attention.q_offset),
            key + kv_step + static_cast<int>(args.attention.kv_offset),
            work.sequence.len_q,
            work.sequence.len_kv,
            0,
            kv_step};
  }
};

}  // namespace foveal::device
