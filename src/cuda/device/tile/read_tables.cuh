#pragma once
// Tables: parameters with data-dependent indices, in shared memory as fp32: all elements that pairs of one batch entry and head can read.
// Small tables are replicated over lanes to avoid bank conflicts.
#include "ptx/mbarrier.cuh"
#include "ptx/warp.cuh"
#include "score/score.cuh"

namespace foveal::device {

constexpr int table_words_before(int end) {
  int words = 0;
  for (int t = 0; t < end; ++t) words += kTable[t].entries * kTable[t].copies;
  return words;
}

struct ReadTables {
  static constexpr int kBytes = 4 * table_words_before(kTables);
  u32 address;

  template <int t = 0>
  FOVEAL_DEVICE void put_into(Pair& pair) const {
    if constexpr (t < kTables) {
      pair.table[t] = address + 4 * (table_words_before(t) + lane_id() % kTable[t].copies);
      put_into<t + 1>(pair);
    }
  }
};

/// Which elements the tables currently hold; kept by the warps that load them, in the same sequence of tasks.
struct TableLoader {
  i64 first[kTableSlots];  // offset of the table's first parameter element

  const Score one;  // a raw score of 1

  FOVEAL_DEVICE explicit TableLoader(float scale) : one{1, scale} {
#pragma unroll
    for (int t = 0; t < kTableSlots; ++t) first[t] = -(1ll << 62);
  }

  /// By `threads` threads, while no one else reads the tables; base: any pair of the batch entry and head.
  FOVEAL_DEVICE void update(ReadTables tables, const Position& base, const ScoreArgs& args, int thread, int threads, u32 barrier) {
    if constexpr (kTables > 0) {
      i64 next[kTableSlots];
      if (!__any_sync(~0u, find<0>(next, base, args))) return;  // a vote, so that the compiler sees a uniform branch
      named_barrier_sync(barrier, threads);
      fill<0>(tables, next, args, thread, threads);
      named_barrier_sync(barrier, threads);
    }
  }

 private:
  /// Does some table need other elements?
  template <int t>
  FOVEAL_DEVICE bool find(i64 (&next)[kTableSlots], const Position& base, const ScoreArgs& args) const {
    int index[kMaxParamRank];
    table_index<t>(base, args, index);
    next[t] = 0;
#pragma unroll
    for (int d = 0; d < kTable[t].rank; ++d) next[t] += kTable[t].dims >> d & 1 ? 0 : index[d] * args.param[kTable[t].param].stride[d];
    const bool differs = next[t] != first[t];
    if constexpr (t + 1 < kTables) return find<t + 1>(next, base, args) || differs;
    return differs;
  }

  template <int t>
  FOVEAL_DEVICE void fill(ReadTables tables, const i64 (&next)[kTableSlots], const ScoreArgs& args, int thread, int threads) {
    using TableElement = typename TableElementOf<t>::type;
    const ParamView& param = args.param[kTable[t].param];
    if (__any_sync(~0u, next[t] != first[t])) {
      first[t] = next[t];
      constexpr int kCount = kTable[t].entries * kTable[t].copies;
#pragma unroll 16
      for (int start = 0; start < kCount; start += threads) {
        const int i = start + thread;
        if (i >= kCount) continue;
        float value = fv_load<TableElement>(param.data, next[t] + offset_of<t>(param, element_of<t>(i / kTable[t].copies)));
        if constexpr (kTable[t].is_scaled) value *= table_unit<t>(one, args);
        store_word(tables.address + 4 * (table_words_before(t) + i), __float_as_uint(value));
      }
    }
    if constexpr (t + 1 < kTables) fill<t + 1>(tables, next, args, thread, threads);
  }

  /// Element of a table entry; padding repeats the last element of its row.
  template <int t>
  FOVEAL_DEVICE static int element_of(int entry) {
    if constexpr (kTable[t].row == kTable[t].padded_row) return entry;
    const int row = entry / kTable[t].padded_row;
    return row * kTable[t].row + min(entry - row * kTable[t].padded_row, kTable[t].row - 1);
  }

  /// Parameter offset of a table element, relative to the first.
  template <int t>
  FOVEAL_DEVICE static i64 offset_of(const ParamView& param, int element) {
    constexpr bool kOne = (kTable[t].dims & (kTable[t].dims - 1)) == 0;
    i64 offset = 0;
#pragma unroll
    for (int d = kTable[t].rank - 1; d >= 0; --d) {
      if (kTable[t].dims >> d & 1) {
        const int rest = kOne ? 0 : element / param.size[d];
        offset += (element - rest * param.size[d]) * param.stride[d];
        element = rest;
      }
    }
    return offset;
  }
};

}  // namespace foveal::device
