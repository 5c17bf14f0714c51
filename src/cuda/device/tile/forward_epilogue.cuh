#pragma once
// Dropout, and the epilogue of the forward kernel: statistics and output, or their merge with those of earlier parts.
#include "philox.cuh"
#include "tile/forward_offsets.cuh"
#include "tile/part.cuh"

namespace foveal::device {

/// State of the epilogue while the task's last product is in flight: where the output goes, and each row's factor.
struct EpilogueState {
  u16* out;         // first row of this thread
  float* part_out;  // the same for a part
  int rows;         // rows that exist from there on
  float factor[2];
  float previous_weight[2];  // a part: factor of what is there
};

struct ForwardEpilogue : TileOffsets {
  using TileOffsets::TileOffsets;
  using State = EpilogueState;

  /// Drops probabilities; the kept ones are scaled in the epilogue.
  FOVEAL_DEVICE void drop(float (&p)[kBlockKv / 2], const ForwardTask& work) const {
    const DropoutRow dropout(args.attention.dropout, dropout_row(args.attention, work.task.batch, work.task.head));
    const u32 kv = static_cast<u32>(args.attention.kv_offset) + work.walk.tile * kBlockKv + fragment_first_column(thread);
    const u32 q = static_cast<u32>(args.attention.q_offset) + row_of(work);
#pragma unroll
    for (int begin = 0; begin < kBlockKv / 2; begin += 16) {
      u32 kept = 0;  // a bit for each register; the loop is rolled: ten rounds of Philox are long
#pragma unroll 1
      for (int i = 0; i < 16; i += 2) {
        bool first, second;
        dropout.keep_two(q + 8 * fragment_row(begin + i), kv + fragment_column(begin + i), first, second);
        kept |= (first ? 1u : 0u) << i | (second ? 2u : 0u) << i;
      }
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if (begin + i < kBlockKv / 2 && !(kept >> i & 1)) p[begin + i] = 0;
      }
    }
  }

  /// Merges a part's lse with the one there and finds the weight of its output. Rows whose sums overflowed wait until their task is redone.
  FOVEAL_DEVICE EpilogueState begin_part_epilogue(const ForwardTask& work, OnlineSoftmax& softmax) const {
    static_assert(!kProblem.part || !kHasSink);
    const bool wrong = kWideRange && pipelines.max_policy() != MaxPolicy::every_tile && __any_sync(~0u, softmax.overflows());
    EpilogueState epilogue;
    double lse[2];
    softmax.finish(exponent, epilogue.factor, lse);
    const PartArgs& part = args.attention.part;
    const Rows& to = args.attention.lse;
    double* first = static_cast<double*>(to.data) + work.task.batch * to.batch + work.task.head * to.head;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 at = static_cast<i64>(query_of(work, r)) * to.seq;
      const bool has_row = exists(work, r) && !wrong;
      const double before = has_row && part.adds_to_q ? first[at] : -static_cast<double>(infinity());
      const PartWeights<float> weights = join_part<float>(lse[r], before, part);
      epilogue.factor[r] *= weights.part;
      epilogue.previous_weight[r] = weights.previous;
      __syncwarp();
      if (has_row && thread % 4 == 0) first[at] = lse[r];
      if constexpr (kProblem.dropout) epilogue.factor[r] *= args.attention.dropout.keep_scale;
    }
    const Tensor& out = args.attention.out;
    epilogue.part_out = static_cast<float*>(out.data) + work.task.batch * out.batch + work.task.head * out.head +
                        static_cast<i64>(query_of(work, 0)) * out.seq;
    epilogue.rows = wrong ? 0 : work.sequence.len_q - row_of(work);
    return epilogue;
  }

  /// Writes lse and finds where the output goes.
  FOVEAL_DEVICE EpilogueState begin_epilogue(const ForwardTask& work, OnlineSoftmax& softmax) const {
    if constexpr (kProblem.part) return begin_part_epilogue(work, softmax);
    EpilogueState epilogue;
    float lse[2];
    if constexpr (kHasSink) {
      const float sink = sink_logit(work.task.head, args.attention.score);
      softmax.finish(exponent, {sink, sink}, epilogue.factor, lse);
    } else {
      softmax.finish(exponent, epilogue.factor, lse);
    }
    write_lse(work, lse);
    if constexpr (kProblem.dropout) {
      epilogue.factor[0] *= args.attention.dropout.keep_scale;
      epilogue.factor[1] *= args.attention.dropout.keep_scale;
    }
    const Tensor& out = args.attention.out;
    epilogue.rows = work.sequence.len_q - row_of(work);
    epilogue.out = static_cast<u16*>(out.data) + work.task.batch * out.batch + work.task.head * out.head +
                   (work.sequence.first_q + row_of(work)) * out.seq;
    return epilogue;
  }

  /// write_out of zeros, in less text.
  FOVEAL_DEVICE void write_zeros(const EpilogueState& epilogue) const {
    const i64 seq = args.attention.out.seq;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool exists = epilogue.rows > 8 * r;
      if constexpr (kProblem.part) {  // what is there stays, or there is nothing yet
        const bool changes = exists && epilogue.previous_weight[r] != 1;
        store_zero_row(epilogue.part_out + 8 * r * seq, 0, changes ? kProblem.head_dim_v : 0, thread % 32);
      } else {
        store_zero_row<Element>(epilogue.out + 8 * r * seq, epilogue.factor[r], exists ? kProblem.head_dim_v : 0, thread % 32);
      }
    }
  }
  FOVEAL_DEVICE void write_out(const EpilogueState& epilogue, const float (&acc)[kDimV / 2]) const {
    const i64 seq = args.attention.out.seq;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool exists = epilogue.rows > 8 * r;
      if constexpr (kProblem.part) {
        const bool changes = exists && (epilogue.factor[r] != 0 || epilogue.previous_weight[r] != 1);
        add_row(epilogue.part_out + 8 * r * seq, acc, r, epilogue.factor[r], epilogue.previous_weight[r], changes ? kProblem.head_dim_v : 0,
                thread % 32);
      } else {
        store_row<Element>(epilogue.out + 8 * r * seq, acc, r, epilogue.factor[r], exists ? kProblem.head_dim_v : 0, thread % 32);
      }
    }
  }
};

}  // namespace foveal::device
