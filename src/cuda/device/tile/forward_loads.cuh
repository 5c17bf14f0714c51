#pragma once
// The producer warpgroup of the forward kernels: one warp loads tiles, another evaluates line values of the score. TileRows
// (tile/head_rows.cuh, tile/packed_rows.cuh) says where queries come from.
#include "tile/forward_sm90.cuh"

namespace foveal::device {

/// By the loading thread or warp.
template <class TileRows>
FOVEAL_DEVICE void produce(const ForwardArgs& args, const Pipelines& pipelines) {
  tma_prefetch_map(args.q);
  prefetch_key_maps(args);
  for (int v = 0; v < kPairTiles; ++v) tma_prefetch_map(args.pairs[v]);
  int round = -1;
  ForwardTask work;
  u32 tile = 0, query = 0;  // pipeline uses; V is loaded one tile behind K, in the order of consumption
  KeyCoord of_value;
  ArrivedKeys arrived;
  const auto load_value = [&](u32 use) {
    pipelines.value.producer_acquire(use);
    if (is_leader()) mbarrier_arrive_expect_bytes(pipelines.value.full_barrier(use), kShared.value_bytes);
    load_keys<kBlockKv, kDimV>(pipelines.value_tile(use).address, map_of_values(args, of_value), pipelines.value.full_barrier(use),
                               of_value);
  };
  while (work.next(round, args, pipelines)) {
    const int batch = kProblem.varlen ? 0 : work.task.batch;
    const int kv_head = TileRows::kv_head(args, work.task.head);
    bool partial, first = true;
    while (work.next_tile(args, partial)) {
      const auto load_first = [&] {
        if (!first) return;
        pipelines.query.producer_acquire(query);
        if (is_leader()) TileRows::load(args, pipelines, query, work.sequence.first_q + work.first_query(), work.task.head, batch);
        ++query;
        first = false;
      };
      if constexpr (kPrefetchesQueries) load_first();
      const KeyCoord of_key =
          key_coord<kBlockKv>(args, work.sequence, work.walk.tile * kBlockKv, kv_head, kKeysInBatches ? batch : 0, arrived);
      pipelines.key.producer_acquire(tile);
      if (is_leader()) mbarrier_arrive_expect_bytes(pipelines.key.full_barrier(tile), kShared.key_bytes);
      load_keys<kBlockKv, kDim>(pipelines.key_tile(tile).address, map_of_keys(args, of_key), pipelines.key.full_barrier(tile), of_key);
      if (is_leader()) pipelines.pairs.load(args, work.first_pair(args.attention), tile);
      if (tile > 0) load_value(tile - 1);
      if constexpr (!kPrefetchesQueries) load_first();
      of_value = of_key;
      ++tile;
    }
  }
  if (tile > 0) load_value(tile - 1);
}

/// Line values of each tile, by one warp.
FOVEAL_DEVICE void evaluate_lines(const Sm90Args& args, const Pipelines& pipelines) {
  int round = -1;
  ForwardTask work;
  u32 tile = 0;
  while (work.next(round, args, pipelines)) {
    const Position base{work.task.batch, work.task.head, 0, 0, work.sequence.len_q, work.sequence.len_kv};
    bool partial;
    Lines before{nullptr};
    int next_kv = 0;  // start of the tile that would continue the previous one
    for (; work.next_tile(args, partial); ++tile) {
      const int first_kv = work.walk.tile * kBlockKv;
      if (first_kv != next_kv) before.data = nullptr;
      pipelines.line_values.producer_acquire(tile);
      const Lines lines = pipelines.lines(tile);
      lines.fill(
          args.attention.score, before,
          [&](int column) { return position_at(args.attention, base, work.first_query(), first_kv + column); },
          [&](int difference) { return position_on_diagonal(args.attention, base, work.first_query() - first_kv - difference); });
      if constexpr (kOffsetsAreColumns) {
        __syncwarp();
        pipelines.key_columns(tile).fill(lines);
      }
      producer_commit(pipelines.line_values, tile);
      before = lines;
      next_kv = first_kv - kBlockKv;
    }
  }
}

}  // namespace foveal::device
