// The arguments of kernels have no bytes between their members: what a launch passes on is what was set, and nothing else.
#include <cstddef>

#include "cuda/device/group_sums_args.cuh"
#include "cuda/device/outside_args.cuh"
#include "cuda/device/pages_args.cuh"
#include "cuda/device/param_gradient_args.cuh"
#include "cuda/device/rows_args.cuh"
#include "cuda/device/sm90_args.cuh"
#include "cuda/device/tile_classes.cuh"

namespace foveal::device {
namespace {

template <class... Members>
constexpr std::size_t bytes_of(const Members&...) {
  return (sizeof(Members) + ...);
}

// FOVEAL_X(struct, its members): a member that is added here and there without the other does not compile.
#define FOVEAL_X(name, ...)                            \
  constexpr std::size_t members_of(const name& args) { \
    const auto& [__VA_ARGS__] = args;                  \
    return bytes_of(__VA_ARGS__);                      \
  }                                                    \
  static_assert(members_of(name{}) == sizeof(name), #name);

FOVEAL_X(Tensor, data, batch, seq, head, dim, copy_bytes, unused)
FOVEAL_X(Rows, data, batch, head, seq)
FOVEAL_X(ParamView, data, stride, size)
FOVEAL_X(ParamGradient, bins, elements, values, stride)
FOVEAL_X(ScoreArgs, param, number)
FOVEAL_X(TileRun, begin, end, full, covered)
FOVEAL_X(TileRuns, runs, row_begin, row_end, batch_stride, head_stride, all_full, unused)
FOVEAL_X(DropoutArgs, seed, offset, state, threshold, keep_scale, keep_scale_f64)
FOVEAL_X(PartArgs, adds_to_q, adds_to_kv, batch_offset, head_offset, heads, number)
FOVEAL_X(AttentionArgs, q, k, v, out, dout, dq, dk, dv, lse, dlse, lse2, largest, delta, batch, heads_q, heads_kv, group_size, seqlen_q,
         seqlen_kv, tiles_q, tiles_kv, q_offset, kv_offset, cu_seqlens_q, kv_lengths, scale, dropout, runs, runs_transposed, score,
         gradient, part)
FOVEAL_X(BlockTable, data, batch, page)
FOVEAL_X(PageUse, first_row, rows)
FOVEAL_X(PageUses, begin, count)
FOVEAL_X(PagesArgs, pool, rows, table, lengths, batch, width, pages, page_size, seqlen_kv, heads, dim, unused, uses, of_page, used)
FOVEAL_X(TensorMap, opaque)
FOVEAL_X(Divisor, value, multiplier, shift)
FOVEAL_X(TaskOrder, tasks, rows, first_row_first, serpentine, sequences_inside, inside, section_heads, last_heads, section_tasks,
         last_section)
FOVEAL_X(SplitRow, reference, sum)
FOVEAL_X(KeptKeys, k, v, kv_offset, len_kv, first_row, end_row, unused)
FOVEAL_X(KeptRows, keys, number, count, first_row, begins, measures, other_stream)
FOVEAL_X(Sm90Args, q, k, v, dout, pairs, attention, order, band_low, band_high, stat_rows, scale, far, dq_sum, dq_semaphore, parts,
         merge_warps, split_out, split_softmax, split_exponent, split_rows, pages, kept)
FOVEAL_X(KeyRange, first, shift, word, arrived, slices)
FOVEAL_X(SpreadKeys, k, v, tile_k, tile_v, sent_tile_k, sent_tile_v, range, words, failed, count, heads, unused)
static_assert(sizeof(SpreadArgs) == sizeof(Sm90Args) + sizeof(SpreadKeys));
FOVEAL_X(PairsArgs, sm90, row_parts, unused)
FOVEAL_X(RowsView, data, batch, token, head, dim)
FOVEAL_X(MoveRowsArgs, from, to, more, batch, tokens, heads, dim, adds, more_count)
FOVEAL_X(GroupSumsArgs, attention, sums, to)
FOVEAL_X(FinishRowsArgs, out, wide, lse, sums, sink, sink_stride, batch, tokens, heads, dim)
FOVEAL_X(SinkGradientArgs, out, dout, lse, dlse, sink, sink_stride, gradient, batch, tokens, heads, dim)
FOVEAL_X(OutsideRead, param, dimension, index)
FOVEAL_X(OutsideArgs, attention, wanted, first, read)
FOVEAL_X(ParamGradientArgs, bins, values, gradient, rank, unused, elements, size, stride)
FOVEAL_X(ClassifyArgs, attention, table, classes, known, rows, tiles)
#undef FOVEAL_X

}  // namespace
}  // namespace foveal::device
