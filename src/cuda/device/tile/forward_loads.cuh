#pragma once
// The warps beside those that compute: one loads tiles, another evaluates what the score needs along their lines. TileRows (tile/head_rows.cuh,
// tile/packed_rows.cuh) say where queries come from.
#include "tile/forward_sm90.cuh"

namespace foveal::device {

/// By those that load.
template <class TileRows>
FOVEAL_DEVICE void produce(const ForwardArgs& args, const Rings& rings) {
  tma_prefetch_map(args.q);
  prefetch_key_maps(args);
  for (int v = 0; v < kPairTiles; ++v) tma_prefetch_map(args.pairs[v]);
  int round = -1;
  ForwardTask work;
  u32 tile = 0, query = 0;  // uses of the rings; values follow one tile behind keys, as they are used
  KeyPlace of_value;
  ArrivedKeys arrived = 0;
  const auto load_value = [&](u32 use) {
    rings.value.wait_empty(use);
    if (leads()) mbarrier_arrive_expect_bytes(rings.value.full(use), kShared.value_bytes);
    load_keys<kBlockKv, kDimV>(rings.value_tile(use).address, map_of_values(args, of_value), rings.value.full(use), of_value);
  };
  while (work.next(round, args, rings)) {
    const int batch = kVarlen ? 0 : work.task.batch;
    const int kv_head = TileRows::kv_head(args, work.task.head);
    bool partial, first = true;
    while (work.next_tile(args, partial)) {
      const auto load_first = [&] {
        if (!first) return;
        rings.query.wait_empty(query);
        if (leads()) TileRows::load(args, rings, query, work.sequence.first_q + work.first_query(), work.task.head, batch);
        ++query;
        first = false;
      };
      if constexpr (kQueriesAhead) load_first();
      const KeyPlace of_key =
          key_place<kBlockKv>(args, work.sequence, work.walk.tile * kBlockKv, kv_head, kKeysInBatches ? batch : 0, arrived);
      rings.key.wait_empty(tile);
      if (leads()) mbarrier_arrive_expect_bytes(rings.key.full(tile), kShared.key_bytes);
      load_keys<kBlockKv, kDim>(rings.key_tile(tile).address, map_of_keys(args, of_key), rings.key.full(tile), of_key);
      if (leads()) rings.pairs.load(args, work.first_pair(args.attention), tile);
      if (tile > 0) load_value(tile - 1);
      if constexpr (!kQueriesAhead) load_first();
      of_value = of_key;
      ++tile;
    }
  }
  if (tile > 0) load_value(tile - 1);
}

/// What the score needs along the lines of each tile, by one warp.
FOVEAL_DEVICE void evaluate_lines(const Sm90Args& args, const Rings& rings) {
  int round = -1;
  ForwardTask work;
  u32 tile = 0;
  while (work.next(round, args, rings)) {
    const Position base{work.task.batch, work.task.head, 0, 0, work.sequence.len_q, work.sequence.len_kv};
    bool partial;
    Lines before{nullptr};
    int next_kv = 0;  // that continues the tile before
    for (; work.next_tile(args, partial); ++tile) {
      const int first_kv = work.walk.tile * kBlockKv;
      if (first_kv != next_kv) before.data = nullptr;
      rings.line_values.wait_empty(tile);
      const Lines lines = rings.lines(tile);
      lines.fill(
          args.attention.score, before,
          [&](int column) { return position_at(args.attention, base, work.first_query(), first_kv + column); },
          [&](int ahead) { return position_on_diagonal(args.attention, base, work.first_query() - first_kv - ahead); });
      if constexpr (kOffsetsAreColumns) {
        __syncwarp();
        rings.key_columns(tile).fill(lines);
      }
      hand_over(rings.line_values, tile);
      before = lines;
      next_kv = first_kv - kBlockKv;
    }
  }
}

}  // namespace foveal::device
