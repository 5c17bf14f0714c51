// Gradients of parameters with a table for each query, t[..., q_idx, f(kv_idx)], for Hopper and 16-bit types, after the backward kernel. A
// CTA owns rows of queries and loops over the keys:
//  s = q k^T;  dp = dout v^T;  ds' = p (dp - delta);  bin[q][f(kv)] += ds' factor
//
// No other CTA has terms for these elements (or, where batch entries or heads share them, exact sums follow), so each sum is made in a
// fixed order without atomics. How f varies along the keys decides how a warp sums (kRow...):
//  runs      constant over 8 to 64 neighbours: summed in registers and over the quad of the row
//  repeats   the same in every tile: accumulated in registers over the walk
//  distinct  eight neighbours have different bins: the lanes of a quad add without conflict
//  any       terms are transposed through shared memory, to lanes that own half of a row each
// Bins of a row stay in shared memory until its walk ends.
//
// config.cuh: kProblem, kConfig (a RowsConfig).
#include "score/far_row.cuh"
#include "score/read_targets.cuh"
#include "tile/fragment.cuh"
#include "tile/kept_columns.cuh"
#include "tile/rows_sm90.cuh"

namespace foveal::device {

/// One warpgroup: 64 queries of every task.
struct Consumer {
  const Sm90Args& args;
  const Pipelines& pipelines;
  const int group, thread;

  /// State over one task.
  struct TaskState {
    float lse2[2], largest[2], delta[2];  // of the thread's two rows
    float held[kHeldSlots][kCount] = {};  // sums of repeating reads
    PairValues pairs[kPairReads > 0 ? kCount : 1];
  };

  FOVEAL_DEVICE Consumer(const Sm90Args& args, const Pipelines& pipelines, int group)
      : args(args), pipelines(pipelines), group(group), thread(threadIdx.x % 128) {}

  FOVEAL_DEVICE int row_in_tile() const { return 64 * group + fragment_first_row(thread); }
  FOVEAL_DEVICE int row_of(const RowsTask& work) const { return work.first_q() + row_in_tile(); }
  FOVEAL_DEVICE int key_of(int first_key) const { return first_key + fragment_first_column(thread); }

  /// The pair of register i in the tile at first_key.
  template <bool partial>
  FOVEAL_DEVICE Position position(const RowsTask& work, int first_key, int i) const {
    const AttentionArgs& attention = args.attention;
    const int row = row_of(work), key = key_of(first_key);
    int q_step = 8 * fragment_row(i), kv_step = fragment_column(i);
    if constexpr (partial) {
      q_step = min(q_step, attention.seqlen_q - 1 - row);
      kv_step = min(kv_step, attention.seqlen_kv - 1 - key);
    }
    return {work.task.batch,
            work.task.head,
            row + static_cast<int>(attention.q_offset) + q_step,
            key + static_cast<int>(attention.kv_offset) + kv_step,
            attention.seqlen_q,
            attention.seqlen_kv,
            q_step,
            kv_step};
  }

  FOVEAL_DEVICE void run() const {
    int round = -1;
    u32 tile = 0, tasks = 0;
    RowsTask work;
    while (work.next(round, args)) {
      bool partial;
      if (!work.next_tile(args, partial)) continue;
      TaskState state;
      start(work, state);
      pipelines.query.consumer_wait(tasks);
      do {
        float scores[kCount], dp[kCount];
        pipelines.stage.consumer_wait(tile);
        wgmma_pin(scores);
        wgmma_pin(dp);
        wgmma_fence();
        multiply_rows<Element, kBlockKv, kDim>(scores, uniform(QueryTile{pipelines.base + kShared.query}), 64 * group,
                                               uniform(KvTile{pipelines.at(tile, kShared.key)}), 0);
        multiply_rows<Element, kBlockKv, kDimV>(dp, uniform(QueryTile{pipelines.base + kShared.dout}), 64 * group,
                                                uniform(KvTile{pipelines.at(tile, kShared.value)}), 0);
        wgmma_commit();
        load_pairs(work, state);
        wgmma_wait<0>();
        wgmma_pin(scores);
        wgmma_pin(dp);
        consumer_release(pipelines.stage, tile++);
        if (partial) {
          add_tile<true>(work, scores, dp, state);
        } else {
          add_tile<false>(work, scores, dp, state);
        }
      } while (work.next_tile(args, partial));
      consumer_release(pipelines.query, tasks++);
      add_held<0>(work, state);
      __syncwarp();
      write<0>(work);
      __syncwarp();
    }
  }

  /// At the first tile of a task.
  FOVEAL_DEVICE void start(const RowsTask& work, TaskState& state) const {
    const AttentionArgs& attention = args.attention;
    const i64 row = (static_cast<i64>(work.task.batch) * attention.heads_q + work.task.head) * args.stat_rows + row_of(work);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      state.lse2[r] = static_cast<const float*>(attention.lse2.data)[row + 8 * r];
      state.largest[r] = static_cast<const float*>(attention.largest.data)[row + 8 * r];
      state.delta[r] = static_cast<const float*>(attention.delta.data)[row + 8 * r];
    }
    if constexpr (kPairReads > 0) {  // repeating values are those of the first tile
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        load_pair_values<false, true, kBlockKv, true>(state.pairs, i, position<true>(work, 0, i), args.attention.score);
    }
  }
  FOVEAL_DEVICE void load_pairs(const RowsTask& work, TaskState& state) const {
    if constexpr (kPairReads > 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        load_pair_values<false, true, kBlockKv>(state.pairs, i, position<true>(work, work.first_key(), i), args.attention.score);
    }
  }

  template <bool partial>
  FOVEAL_DEVICE void add_tile(const RowsTask& work, const float (&scores)[kCount], float (&gradients)[kCount], TaskState& state) const {
    const AttentionArgs& attention = args.attention;
    const float scale = args.scale;
    const float exponent = score_unit({1, scale}, position<true>(work, work.first_key(), 0), attention.score) * kLog2e;
    const int row = row_of(work), key = key_of(work.first_key());
    const KeptColumns<Walk> columns = columns_kept_by_queries<Walk>(args, row, key);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int r = fragment_row(i), column = fragment_column(i);
      const Pair at = pair<partial>(work, state, i);
      const Score score{scores[i], scale};
      const float p =
          exp2_real(fmaf(unfused_difference(score_in_units(score, at, attention.score), state.largest[r]), exponent, -state.lse2[r]));
      float gradient = p * (gradients[i] - state.delta[r]);
      if constexpr (partial) {
        bool keep = columns.keep(r, column);
        if constexpr (kMaskProgram) keep = mask_keep(at, attention.score) & keep;
        gradient = keep ? gradient : 0.0f;
      }
      gradients[i] = gradient;
    }
    add_read<0, partial>(work, scores, gradients, state);
  }

  template <bool partial>
  FOVEAL_DEVICE Pair pair(const RowsTask& work, const TaskState& state, int i) const {
    Pair at;
    static_cast<Position&>(at) = position<partial>(work, work.first_key(), i);
    put_pair_values<false, true, kBlockKv>(at, state.pairs, i);
    return at;
  }

  /// Adds a tile to read n and those after it.
  template <int n, bool partial>
  FOVEAL_DEVICE void add_read(const RowsTask& work, const float (&scores)[kCount], const float (&gradients)[kCount],
                              TaskState& state) const {
    if constexpr (n < kRowReads) {
      constexpr int r = kRowRead[n].read;
      float terms[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        terms[i] = gradients[i];
        if constexpr (!kRead[r].factor_is_one) {
          const Score score{scores[i], args.scale};
          const float product = gradients[i] * read_factor_in_units<r>(score, pair<partial>(work, state, i), args.attention.score);
          terms[i] = kRead[r].factor_is_finite || gradients[i] != 0.0f ? product : 0.0f;
        }
      }
      if constexpr (in_registers(n)) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) state.held[in_registers_before(n)][i] += terms[i];
      } else if constexpr (kRowRead[n].run > 0) {
        add_runs<n>(work, terms);
      } else if constexpr (kRowRead[n].any) {
        add_transposed<n>(work, terms);
      } else {
        add_tile_to_bins<n, partial>(work, work.first_key(), terms);
      }
      add_read<n + 1, partial>(work, scores, gradients, state);
    }
  }

  template <int n>
  FOVEAL_DEVICE void add_runs(const RowsTask& work, const float (&terms)[kCount]) const {
    constexpr int kRegisters = kRowRead[n].run / 2;  // of a run, over two rows
#pragma unroll
    for (int first = 0; first < kCount; first += kRegisters) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float sum[2] = {};
#pragma unroll
        for (int i = first + 2 * row; i < first + kRegisters; i += 4) {
          sum[0] += terms[i];
          sum[1] += terms[i + 1];
        }
        const float total = quad_sum(sum[0] + sum[1]);
        const Position at = position<true>(work, work.first_key(), first + 2 * row);
        if (thread % 4 == 0) {
          const u32 bin = pipelines.bins<n>(row_in_tile() + 8 * row) + 4 * row_bin<n>(at, args.attention.score);
          store_word(bin, __float_as_uint(load_float(bin) + total));
        }
      }
    }
  }

  /// Pair by pair.
  template <int n, bool partial>
  FOVEAL_DEVICE void add_tile_to_bins(const RowsTask& work, int first_key, const float (&terms)[kCount]) const {
    const u32 rows[2] = {pipelines.bins<n>(row_in_tile()), pipelines.bins<n>(row_in_tile() + 8)};
    const int columns = args.attention.seqlen_kv - key_of(first_key);  // that exist, from the thread's first on
#pragma unroll
    for (int first = 0; first < kCount; first += 4) {
      u32 bin[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        bin[j] = rows[fragment_row(j)] + 4 * row_bin<n>(position<partial>(work, first_key, first + j), args.attention.score);
      const auto exists = [&](int j) {
        return !partial || fragment_column(first + j) < columns;
      };  // missing pairs share the bin of an existing one
      if constexpr (kRowRead[n].distinct) {
        float sum[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[j] = load_float(bin[j]) + terms[first + j];
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (exists(j)) store_word(bin[j], __float_as_uint(sum[j]));
        __syncwarp();
      } else {
#pragma unroll 1
        for (int lane = 0; lane < 4; ++lane) {
          if (thread % 4 == lane) {
#pragma unroll
            for (int j = 0; j < 4; ++j) store_word(bin[j], __float_as_uint(load_float(bin[j]) + terms[first + j]));
          }
          __syncwarp();
        }
      }
    }
  }

  /// Each lane owns half of a row and a copy of its bins; consecutive terms of one bin are summed in a register.
  template <int n>
  FOVEAL_DEVICE void add_transposed(const RowsTask& work, const float (&terms)[kCount]) const {
    const AttentionArgs& attention = args.attention;
    const int first_row = 64 * group + thread / kWarp * 16;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const u32 at = pipelines.transposed(row_in_tile() + 8 * fragment_row(i)) + 4 * (fragment_first_column(thread) + fragment_column(i));
      store_word(at, __float_as_uint(terms[i]));
      store_word(at + 4, __float_as_uint(terms[i + 1]));
    }
    __syncwarp();
    const int row = first_row + lane_id() % 16, first = lane_id() / 16 * (kBlockKv / 2);
    const u32 from = pipelines.transposed(row) + 4 * first,
              copy = pipelines.bins<n>(row) + lane_id() / 16 * 4 * row_copy_words(kRowRead[n].entries);
    const int q = min(work.first_q() + row, attention.seqlen_q - 1);
    u32 bin = copy;
    float sum = load_float(bin);
#pragma unroll 2
    for (int c = 0; c < kBlockKv / 2; c += 4) {
      u32 four[4];
      load_words(from + 4 * c, four);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int key = min(work.first_key() + first + c + j, attention.seqlen_kv - 1);
        const Position at{
            work.task.batch,    work.task.head,     q + static_cast<int>(attention.q_offset), key + static_cast<int>(attention.kv_offset),
            attention.seqlen_q, attention.seqlen_kv};
        const u32 next = copy + 4 * row_bin<n>(at, attention.score);
        if (next != bin) {
          store_word(bin, __float_as_uint(sum));
          bin = next;
          sum = load_float(bin);
        }
        sum += __uint_as_float(four[j]);
      }
    }
    store_word(bin, __float_as_uint(sum));
  }

  /// Adds the sums held in registers, at the end of a walk.
  template <int n>
  FOVEAL_DEVICE void add_held(const RowsTask& work, const TaskState& state) const {
    if constexpr (n < kRowReads) {
      if constexpr (in_registers(n)) add_tile_to_bins<n, true>(work, 0, state.held[in_registers_before(n)]);
      add_held<n + 1>(work, state);
    }
  }

  /// Writes and clears the sums of the warp's rows.
  template <int n>
  FOVEAL_DEVICE void write(const RowsTask& work) const {
    if constexpr (n < kRowReads) {
      constexpr int r = kRowRead[n].read;
      const AttentionArgs& attention = args.attention;
      const ScoreArgs& score = attention.score;
      const auto& size = score.param[kRead[r].param].size;
      const ParamGradient& gradient = attention.gradient[kRead[r].param];
      const int first = 64 * group + thread / kWarp * 16;
#pragma unroll 1
      for (int row = first; row < first + 16; ++row) {
        const int q = work.first_q() + row;
        if (q >= attention.seqlen_q) break;
        const Position at{
            work.task.batch,    work.task.head,     q + static_cast<int>(attention.q_offset), static_cast<int>(attention.kv_offset),
            attention.seqlen_q, attention.seqlen_kv};
        int index[kMaxParamRank];
        read_index<r>(0.0f, at, score, index);
        const float unit = read_unit<r>({1, args.scale}, at, score);
#pragma unroll 1
        for (int entry = lane_id(); entry < kRowRead[n].entries; entry += kWarp) {
          const u32 bin = pipelines.bins<n>(row) + 4 * entry;
          float total = load_float(bin);
          store_word(bin, 0);
          if constexpr (kRowRead[n].any) {
            const u32 copy = bin + 4 * row_copy_words(kRowRead[n].entries);
            total += load_float(copy);
            store_word(copy, 0);
          }
          const float sum = apply_unit(total, unit);
          int rest = entry;
          i64 offset = 0, element = 0, step = 1;
#pragma unroll
          for (int d = kRead[r].rank - 1; d >= 0; --d) {
            int of_dimension = index[d];
            if (kRowRead[n].dims >> d & 1) {
              const int above = kOneDimension<n> ? 0 : rest / size[d];
              of_dimension = rest - above * size[d];
              rest = above;
            }
            offset += of_dimension * gradient.stride[d];
            element += of_dimension * step;
            step *= size[d];
          }
          if constexpr (kRowRead[n].stored) {
            from_real(static_cast<typename RowGradientOf<n>::type*>(gradient.values)[offset], sum);
          } else if (sum != 0) {
            add_to_element<r>(attention, element, sum);
          }
        }
      }
      write<n + 1>(work);
    }
  }
  template <int n>
  static constexpr bool kOneDimension = (kRowRead[n].dims & (kRowRead[n].dims - 1)) == 0;
};

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 1) rows_sm90(const __grid_constant__ foveal::device::Sm90Args args) {
  using namespace foveal::device;
  extern __shared__ __align__(1024) unsigned char shared[];
  const Pipelines pipelines(shared_address(shared));
  const int warp_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  pipelines.init();
  if (warp_group == 0) {
    registers_decrease<kConfig.producer_registers()>();
    if (threadIdx.x == 0) produce(args, pipelines);
  } else {
    registers_increase<kConfig.consumer_registers()>();
    Consumer(args, pipelines, warp_group - 1).run();
  }
}
