#pragma once
// Recomputes dQ rows whose sum was lost: a key with infinity or NaN met 0 from a pair that is not kept. Rare, hence directly from global
// memory, with products of 16 queries by 16 keys.
//
// config.cuh: kProblem, kConfig (a BackwardRowsConfig).
#include "philox.cuh"
#include "ptx/mma.cuh"
#include "schedule/tasks.cuh"
#include "score/far_row.cuh"
#include "score/score.cuh"
#include "tile/dq_sum.cuh"
#include "tile/kept_pair.cuh"
#include "tile/line_values.cuh"
#include "tile/part.cuh"

namespace foveal::device {

/// Does dQ of a part add to what is there, in f32? Otherwise dQ is of all keys.
constexpr bool kAddsToDq = kProblem.part && !kConfig.keeps_rows;

/// Elements of one head of a sequence; rows are clamped, columns zero-padded.
template <int columns>
struct HeadElements {
  const u16* data;
  i64 row_stride;
  int rows;
  FOVEAL_DEVICE HeadElements(const Tensor& tensor, int batch, i64 first_row, int rows, int head)
      : data(static_cast<const u16*>(tensor.data) + batch * tensor.batch + head * tensor.head + first_row * tensor.seq),
        row_stride(tensor.seq),
        rows(rows) {}
  FOVEAL_DEVICE const u16* at(int row, int column) const { return data + min(row, rows - 1) * row_stride + column; }
  FOVEAL_DEVICE u32 one(int row, int column) const { return column < columns ? *at(row, column) : 0; }
  FOVEAL_DEVICE u32 two(int row, int column) const { return column < columns ? *reinterpret_cast<const u32*>(at(row, column)) : 0; }
};

/// product[16 x 16] = rows of a from row_a on times rows of b from row_b on, in fragments of 8 rows of b.
template <int columns>
FOVEAL_DEVICE void multiply_elements(float (&product)[2][4], const HeadElements<columns>& a, int row_a, const HeadElements<columns>& b,
                                     int row_b) {
  const int group = lane_id() / 4, pair = 2 * (lane_id() % 4);
#pragma unroll 1
  for (int k = pair; k < columns; k += 16) {
    const u32 left[4] = {a.two(row_a + group, k), a.two(row_a + group + 8, k), a.two(row_a + group, k + 8),
                         a.two(row_a + group + 8, k + 8)};
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int row = row_b + 8 * block + group;
      mma(Element{}, product[block], left, b.two(row, k), b.two(row, k + 8));
    }
  }
}

/// acc += left[16 x 16] times 16 keys from first_key on. kept: bitmask of the thread's eight pairs.
FOVEAL_DEVICE void multiply_kept_keys(float (&acc)[kPartColumns / 2], const u32 (&left)[4], u32 kept,
                                      const HeadElements<kProblem.head_dim>& keys, int first_key, int column) {
  const int group = lane_id() / 4, pair = 2 * (lane_id() % 4);
  u32 kept_keys[2];  // of a row, a bit for each of the 16
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    kept_keys[r] = (kept >> 2 * r & 3) << pair | (kept >> (4 + 2 * r) & 3) << (8 + pair);
    kept_keys[r] |= __shfl_xor_sync(~0u, kept_keys[r], 1);
    kept_keys[r] |= __shfl_xor_sync(~0u, kept_keys[r], 2);
  }
#pragma unroll
  for (int n = 0; n < kPartColumns / 2; n += 4) {
    u32 right[2] = {}, nonfinite = 0;  // keys with a non-finite element in this lane's column, a bit for each of the 16
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = 8 * (i / 2) + pair + i % 2;
      const u32 element = keys.one(first_key + key, column + 2 * n + group);
      if (fabsf(to_real(Element{static_cast<u16>(element)})) < infinity()) {
        right[i / 2] |= element << 16 * (i % 2);
      } else {
        nonfinite |= 1u << key;
      }
    }
    float block[4] = {acc[n], acc[n + 1], acc[n + 2], acc[n + 3]};
    mma(Element{}, block, left, right[0], right[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[n + i] = block[i];
    if (!__any_sync(~0u, nonfinite != 0)) continue;
    nonfinite |= __shfl_xor_sync(~0u, nonfinite, 1);
    nonfinite |= __shfl_xor_sync(~0u, nonfinite, 2);
#pragma unroll
    for (int i = 0; i < 4;
         ++i) {  // the query keeps such a key: its score is finite only if independent of the key, and 0 times infinity is NaN
      const u32 of_column = __shfl_sync(~0u, nonfinite, 4 * (pair + i % 2));
      if (of_column & kept_keys[i / 2]) acc[n + i] = infinity() - infinity();
    }
  }
}

/// Stores two columns of each fragment, for the wanted rows of first_row and first_row + 8, from `column` on.
FOVEAL_DEVICE void store_recomputed(const Sm90Args& args, const Position& base, const float (&acc)[kPartColumns / 2], i64 first_row,
                                    int column, const bool (&wanted)[2]) {
  const float unit = kHasScore ? slope_unit({1, args.scale}, base, args.attention.score) : 1.0f;
  const Tensor& dq = args.attention.dq;
#pragma unroll
  for (int i = 0; i < kPartColumns / 2; i += 2) {
    const int r = i / 2 % 2, here = column + i / 4 * 8;
    if (!wanted[r] || here >= kProblem.head_dim) continue;
    const i64 at = base.batch * dq.batch + base.head * dq.head + (first_row + 8 * r) * dq.seq + here;
    float two[2] = {apply_unit(acc[i], unit) * args.scale, apply_unit(acc[i + 1], unit) * args.scale};
    if constexpr (kAddsToDq) {
      float2* to = reinterpret_cast<float2*>(static_cast<float*>(dq.data) + at);
      const float2 before = args.attention.part.adds_to_q ? *to : make_float2(0, 0);
      *to = make_float2(before.x + two[0], before.y + two[1]);
    } else {
      *reinterpret_cast<u32*>(static_cast<u16*>(dq.data) + at) = pack(Element{}, two[0], two[1]);
    }
  }
}

/// Recomputes dQ of 16 queries from `first` on, columns from `column` on, by one warp. *_nonfinite: which of the thread's two rows are to
/// be written. A row whose statistics are NaN is NaN anyway and stays, unless dQ adds to what is there, to which nothing was added yet.
FOVEAL_CALLED void recompute_dq(const Sm90Args& args, int batch, int head, int first, int column, bool first_nonfinite,
                                bool second_nonfinite) {
  const AttentionArgs& attention = args.attention;
  const Sequence sequence = find_sequence(attention, batch);
  Position base{batch, head, 0, 0, sequence.len_q, sequence.len_kv};
  const int group = lane_id() / 4, pair = 2 * (lane_id() % 4);
  float log_sum[2], largest[2], delta[2];
  bool wanted[2] = {first_nonfinite, second_nonfinite};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const i64 stat = stat_row<kProblem.varlen>(args, sequence, head) + first + group + 8 * r;
    log_sum[r] = static_cast<const float*>(attention.lse2.data)[stat];
    largest[r] = static_cast<const float*>(attention.largest.data)[stat];
    delta[r] = static_cast<const float*>(attention.delta.data)[stat];
    if (!kAddsToDq) wanted[r] = wanted[r] && log_sum[r] == log_sum[r] && delta[r] == delta[r];
  }
  if (!__any_sync(~0u, wanted[0] || wanted[1])) return;

  const HeadElements<kProblem.head_dim> queries(attention.q, batch, sequence.first_q, sequence.len_q, head);
  const HeadElements<kProblem.head_dim_v> dout(attention.dout, batch, sequence.first_q, sequence.len_q, head);
  const float exponent = score_unit({1, args.scale}, base, attention.score) * kLog2e;
  const DropoutRow dropout(attention.dropout, dropout_row(attention, batch, head));
  float acc[kPartColumns / 2] = {};
#pragma unroll 1
  for (int part = 0; part < (kConfig.keeps_rows ? args.kept.count : 1); ++part) {
    KeptKeys of_part{attention.k, attention.v, attention.kv_offset, sequence.len_kv, 0, sequence.len_q, 0};
    if constexpr (kConfig.keeps_rows) of_part = args.kept.keys[part];
    const HeadElements<kProblem.head_dim> keys(of_part.k, batch, sequence.first_kv, of_part.len_kv, head / attention.group_size);
    const HeadElements<kProblem.head_dim_v> values(of_part.v, batch, sequence.first_kv, of_part.len_kv, head / attention.group_size);
    const int shift = static_cast<int>(of_part.kv_offset - attention.kv_offset);
    base.seqlen_kv = of_part.len_kv;
#pragma unroll 1
    for (int first_key = 0; first_key < of_part.len_kv; first_key += 16) {
      // Pair i of the thread's eight: key 8 (i / 4) + pair + i % 2 of the 16, row i / 2 % 2.
      const auto row = [&](int i) { return first + group + i / 2 % 2 * 8; };
      const auto key = [&](int i) { return first_key + 8 * (i / 4) + pair + i % 2; };
      const auto position = [&](int i) {
        Position at = position_at(attention, base, row(i), key(i));
        at.kv += shift;
        return at;
      };
      u32 kept = 0;
#pragma unroll 1
      for (int i = 0; i < 8; ++i) {
        bool keep = row(i) >= of_part.first_row && row(i) < of_part.end_row && key(i) < of_part.len_kv;
        if constexpr (kHasMask) keep = keep && keeps_pair(args, position(i), row(i), key(i) + shift);
        if (keep) kept |= 1u << i;
      }
      if (!__any_sync(~0u, kept != 0)) continue;

      float scores[2][4] = {}, grads[2][4] = {};
      multiply_elements(scores, queries, first, keys, first_key);
      multiply_elements(grads, dout, first, values, first_key);
#pragma unroll 1
      for (int i = 0; i < 8; ++i) {
        const int r = i / 2 % 2;
        const Position at = position(i);
        const Score raw{scores[i / 4][i % 4], args.scale};
        const float logarithm = fmaf(unfused_difference(score_in_units(raw, at, attention.score), r == 0 ? largest[0] : largest[1]),
                                     exponent, r == 0 ? -log_sum[0] : -log_sum[1]);
        if (logarithm == -infinity()) kept &= ~(1u << i);
        float grad = grads[i / 4][i % 4];
        if constexpr (kProblem.dropout) {
          const bool stays = dropout.keep(static_cast<u32>(at.q), static_cast<u32>(at.kv));
          grad = stays ? grad * attention.dropout.keep_scale : 0.0f;
        }
        grad = exp2_real(logarithm) * (grad - (r == 0 ? delta[0] : delta[1]));
        if constexpr (kHasScore) grad *= slope_in_units(raw, at, attention.score);
        grads[i / 4][i % 4] = kept >> i & 1 ? grad : 0.0f;
      }
      const u32 left[4] = {pack(Element{}, grads[0][0], grads[0][1]), pack(Element{}, grads[0][2], grads[0][3]),
                           pack(Element{}, grads[1][0], grads[1][1]), pack(Element{}, grads[1][2], grads[1][3])};
      multiply_kept_keys(acc, left, kept, keys, first_key, column);
    }
  }
  store_recomputed(args, base, acc, sequence.first_q + first + group, column + pair, wanted);
}

}  // namespace foveal::device
