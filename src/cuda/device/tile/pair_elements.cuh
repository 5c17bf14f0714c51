#pragma once
// Elements of the parameter in kernels/pairs_sm90.cuh: their addresses, and zeros where the mask drops whole tiles.
#include "score/read_targets.cuh"
#include "tile/pairs_sm90.cuh"

namespace foveal::device {

/// Address of a pair's element, and the strides to the next query and key.
struct Elements {
  Gradient* first;
  i64 row_stride, column_stride;

  FOVEAL_DEVICE Elements(const AttentionArgs& args, const Task& task, int q, int kv) {
    const ParamGradient& gradient = args.gradient[kRead[kConfig.read].param];
    const Position at{task.batch,    task.head,     q + static_cast<int>(args.q_offset), kv + static_cast<int>(args.kv_offset),
                      args.seqlen_q, args.seqlen_kv};
    int index[kMaxParamRank];
    read_index<kConfig.read>(0.0f, at, args.score, index);
    first = static_cast<Gradient*>(gradient.values);
#pragma unroll
    for (int d = 0; d < kRead[kConfig.read].rank; ++d) first += index[d] * gradient.stride[d];
    row_stride = gradient.stride[kRead[kConfig.read].row_dim];
    column_stride = gradient.stride[kRead[kConfig.read].column_dim];
  }
  /// May `count` neighbours of every row be written by one vector store?
  FOVEAL_DEVICE bool side_by_side(int count) const {
    return column_stride == 1 && row_stride % count == 0 && reinterpret_cast<u64>(first) % (sizeof(Gradient) * count) == 0;
  }
};

/// Writes zeros to the tiles that a task's mirrored row does not visit. By kCleaners warps.
struct Cleaner {
  const PairsArgs& args;
  const Pipelines& pipelines;

  FOVEAL_DEVICE void run() const {
    int round = -1;
    PairsTask work;
    while (work.next(round, args, true)) {
      pipelines.tasks.consumer_wait(round);
      int end = divide_up(args.sm90.attention.seqlen_kv, kBlockKv);
      bool partial;
      while (work.next_tile(args, partial)) {
        clear(work, work.walk.tile + 1, end);
        end = work.walk.tile;
      }
      clear(work, 0, end);
      consumer_release(pipelines.tasks, round);
    }
  }

  FOVEAL_DEVICE void clear(const PairsTask& work, int begin, int end) const {
    const AttentionArgs& attention = args.sm90.attention;
    const int rows = min(kBlockQ, attention.seqlen_q - work.first_q());
    const int parts = args.row_parts.value, before = divide(begin + parts - 1 - work.part, args.row_parts);  // own tiles
    for (int tile = work.part + before * parts; tile < end; tile += parts) {
      const Elements to(attention, work.task, work.first_q(), tile * kBlockKv);
      const int columns = min(kBlockKv, attention.seqlen_kv - tile * kBlockKv);
      constexpr int kAtOnce = 16 / sizeof(Gradient);
      const bool wide = to.side_by_side(kAtOnce) && columns % kAtOnce == 0;
      for (int row = warp_id() - kFirstCleaner; row < rows; row += kCleaners) {
        Gradient* at = to.first + row * to.row_stride;
        if (wide) {
          for (int c = kAtOnce * lane_id(); c < columns; c += kAtOnce * kWarp) store_streaming(at + c, make_uint4(0, 0, 0, 0));
        } else {
          for (int c = lane_id(); c < columns; c += kWarp) from_real(at[c * to.column_stride], 0.0f);
        }
      }
    }
  }
};

}  // namespace foveal::device
