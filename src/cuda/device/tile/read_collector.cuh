#pragma once
// Collector warps: sums of staged parameter-gradient terms (tile/collect_reads.cuh) along rows
// and diagonals, while the next tile is computed.
#include "tile/collect_reads.cuh"

namespace foveal::device {

/// One of kCollectors warps that sum staged terms, 32 queries or diagonals at a time: eight lanes with four neighbours each, and four such
/// groups share the rows. The walk goes down, and the next tile shares all but the kBlockQ highest diagonals, so only these are finished
/// with a tile. A lane holds the sum of an element as long as its element stays the same, as at the clamped ends of a table or in far
/// buckets of relative positions.
struct ReadCollector {
  static constexpr int kCollectors = 2;
  static constexpr int kWarps = ReadStage::kRows / 8;  // that stage rows
  static constexpr int kAtOnce = kWarp * kCollectors;
  static constexpr int kRounds = (kBlockKv + kBlockQ) / kAtOnce, kFinished = kBlockQ / kAtOnce;  // over the diagonals of a tile

  const AttentionArgs& args;
  const ReadStage stage;
  const int number;             // index of this collector
  const int group, neighbours;  // of this lane
  Position base;                // of the tile, without q and kv
  int first_q, first_key;
  float diagonals[kReadSlots][kRounds][4];
  float rows[kReadSlots][kFinished][4];  // queries of the tile
  i64 element[kReadSlots];
  float sum[kReadSlots];  // not yet added to its element

  FOVEAL_DEVICE ReadCollector(const AttentionArgs& args, ReadStage stage, int number)
      : args(args), stage(stage), number(number), group(lane_id() / 8), neighbours(4 * (lane_id() % 8)) {
#pragma unroll
    for (int r = 0; r < kReadSlots; ++r) {
      element[r] = 0;
      sum[r] = 0;
#pragma unroll
      for (int i = 0; i < 4 * kRounds; ++i) diagonals[r][i / 4][i % 4] = 0;
    }
  }

  /// Does the next tile share diagonals with this one?
  FOVEAL_DEVICE bool continues_walk(int head, int q) const { return head == base.head && q == first_q - kBlockQ; }

  /// Reads a tile's terms from the staging buffer.
  FOVEAL_DEVICE void collect(const Position& tile_base, int q, int key) {
    base = tile_base;
    first_q = q;
    first_key = key;
    collect_read<0>();
  }

  /// Adds the tile's finished lines; the next tile continues the others.
  FOVEAL_DEVICE void add_tile() { add_lines<0>(); }

  /// Adds the rest at the end of a walk.
  FOVEAL_DEVICE void finish() {
#pragma unroll 1
    for (int round = kFinished; round < kRounds; round += kFinished) {
      first_q -= kBlockQ;
      add_diagonals<0>();
    }
    add_sums<0>();
  }

 private:
  template <int r>
  FOVEAL_DEVICE void collect_read() {
    constexpr int kPitch = ReadStage::kPitch<r>;
    if constexpr (kRead[r].kind == kRow) {
#pragma unroll
      for (int i = 0; i < kFinished; ++i) {
        const float* from = stage.row<r>(group) + kAtOnce * i + kWarp * number + neighbours;
#pragma unroll
        for (int j = 0; j < 4; ++j) rows[r][i][j] = 0;
#pragma unroll 8
        for (int row = 0; row < ReadStage::kRows; row += 4) add_four(rows[r][i], from + row * kPitch);
      }
    }
    if constexpr (kRead[r].kind == kDiagonal) {
      const float* from = stage.row<r>(2 * group) + neighbours + 2 * group + 8;
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const int first = first_diagonal(round);
#pragma unroll 2
        for (int warp = max(0, -first / 16 - 2); warp < min(kWarps, kBlockQ / 16 - first / 16); ++warp) {
          const float* row = from + 8 * warp * kPitch + first + 16 * warp;
          add_four(diagonals[r][round], row);
          add_four(diagonals[r][round], row + kPitch + 1);
        }
      }
    }
    if constexpr (r + 1 < kReads) collect_read<r + 1>();
  }

  FOVEAL_DEVICE static void add_four(float (&total)[4], const float* from) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    total[0] += four.x;
    total[1] += four.y;
    total[2] += four.z;
    total[3] += four.w;
  }

  /// Sums over the four groups; each keeps one of the four neighbours.
  FOVEAL_DEVICE float sum_groups(const float (&total)[4]) const {
    const bool high = group & 2, odd = group & 1;
    float two[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) two[i] = (high ? total[2 + i] : total[i]) + __shfl_xor_sync(~0u, high ? total[i] : total[2 + i], 16);
    return (odd ? two[1] : two[0]) + __shfl_xor_sync(~0u, odd ? two[0] : two[1], 8);
  }
  FOVEAL_DEVICE int kept_of_four() const { return group; }

  /// query - key within the tile, for the warp's first lane.
  FOVEAL_DEVICE int first_diagonal(int round) const { return kAtOnce * round + kWarp * number - kBlockKv; }

  template <int r>
  FOVEAL_DEVICE void add_lines() {
    if constexpr (kRead[r].kind == kRow) {
#pragma unroll
      for (int i = 0; i < kFinished; ++i) {
        const int query = first_q + kAtOnce * i + kWarp * number + neighbours + kept_of_four();
        add<r>(position_at(args, base, query, first_key), sum_groups(rows[r][i]));
      }
    }
    if constexpr (kRead[r].kind == kDiagonal) add_finished<r>();
    if constexpr (r + 1 < kReads) add_lines<r + 1>();
  }

  /// Adds the finished diagonals and shifts the others up.
  template <int r>
  FOVEAL_DEVICE void add_finished() {
#pragma unroll
    for (int round = kRounds - 1; round >= 0; --round) {
      if (round >= kRounds - kFinished) {
        const int difference = first_q - first_key + first_diagonal(round) + neighbours + kept_of_four();
        add<r>(position_on_diagonal(args, base, difference), sum_groups(diagonals[r][round]));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) diagonals[r][round][i] = round < kFinished ? 0.0f : diagonals[r][max(round - kFinished, 0)][i];
    }
  }

  template <int r>
  FOVEAL_DEVICE void add_diagonals() {
    if constexpr (kRead[r].kind == kDiagonal) add_finished<r>();
    if constexpr (r + 1 < kReads) add_diagonals<r + 1>();
  }

  template <int r>
  FOVEAL_DEVICE void add(const Position& at, float total) {
    const i64 next = read_element<r>(args, 0.0f, at);
    if (__any_sync(~0u, next != element[r])) {
      add_warp_to_read<r>(args, element[r], sum[r]);
      element[r] = next;
      sum[r] = 0;
    }
    sum[r] += sum_of_read<r>(args, base, total);
  }

  template <int r>
  FOVEAL_DEVICE void add_sums() {
    if constexpr (kRead[r].is_staged) {
      add_warp_to_read<r>(args, element[r], sum[r]);
      sum[r] = 0;
    }
    if constexpr (r + 1 < kReads) add_sums<r + 1>();
  }
};

}  // namespace foveal::device
