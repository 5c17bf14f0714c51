#pragma once
// Epilogue of the decode kernel: lse and output, or with split-KV the softmax state and the unnormalised output of a split, for
// kernels/merge_splits_sm90.cuh.
#include "tile/forward_scores.cuh"
#include "tile/packed_rows.cuh"

namespace foveal::device {

/// State of the epilogue while the task's last product is in flight: where the output goes, and each row's factor.
struct EpilogueState {
  u16* out[2];
  float* split_out[2];
  int rows;  // a bit for each of the two rows that exists
  float factor[2];
};

struct DecodeEpilogue : TileScores<PackedRows> {
  using TileScores::TileScores;
  using State = EpilogueState;

  /// Row r of this split in the workspace.
  FOVEAL_DEVICE i64 split_row(const ForwardTask& work, int r) const {
    const int first = kProblem.varlen ? work.sequence.first_q : work.task.batch * args.attention.seqlen_q;
    return work.split * args.split_rows + static_cast<i64>(first + query_of(work, r)) * args.attention.heads_q + head_of(work, r);
  }

  FOVEAL_DEVICE void write_split(const ForwardTask& work, const OnlineSoftmax& softmax) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(softmax.sum[r]);
      if (thread % 4 == 0 && exists(work, r)) args.split_softmax[split_row(work, r)] = {softmax.reference[r], sum};
    }
  }

  /// Writes lse or the split's state, and finds where the output goes.
  FOVEAL_DEVICE EpilogueState begin_epilogue(const ForwardTask& work, OnlineSoftmax& softmax) const {
    EpilogueState epilogue;
    float lse[2];
    if constexpr (kHasSink && !kConfig.split_kv) {  // else when splits are merged
      softmax.finish(exponent, {sink_logit(head_of(work, 0), args.attention.score), sink_logit(head_of(work, 1), args.attention.score)},
                     epilogue.factor, lse);
    } else {
      softmax.finish(exponent, epilogue.factor, lse);
    }
    if constexpr (kConfig.split_kv) {
      write_split(work, softmax);
    } else {
      write_lse(work, lse);
    }
    const Tensor& out = args.attention.out;
    epilogue.rows = (exists(work, 0) ? 1 : 0) + (exists(work, 1) ? 2 : 0);
    for (int r = 0; r < 2; ++r) {
      if constexpr (kConfig.split_kv) {
        epilogue.split_out[r] = args.split_out + split_row(work, r) * kProblem.head_dim_v;
      } else {
        epilogue.out[r] = static_cast<u16*>(out.data) + work.task.batch * out.batch + head_of(work, r) * out.head +
                          (work.sequence.first_q + query_of(work, r)) * out.seq;
      }
    }
    return epilogue;
  }

  FOVEAL_DEVICE void write_out(const EpilogueState& epilogue, const float (&acc)[kDimV / 2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int columns = epilogue.rows >> r & 1 ? kProblem.head_dim_v : 0;
      if constexpr (kConfig.split_kv) {
        store_row(epilogue.split_out[r], acc, r, epilogue.factor[r], columns, thread % 32);
      } else {
        store_row<Element>(epilogue.out[r], acc, r, epilogue.factor[r], columns, thread % 32);
      }
    }
  }
};

}  // namespace foveal::device
