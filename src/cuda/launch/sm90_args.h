#pragma once
// What the launches of the sm_90 kernels share: tensor maps, arguments, and what these kernels cannot do.
#include <optional>
#include <string>

#include "cuda/device/sm90_args.cuh"
#include "cuda/jit/driver.h"
#include "cuda/score/score_emit.h"
#include "cuda/tune/sm90.h"
#include "problem/problem.h"

namespace foveal::cuda {

/// What no sm_90 kernel can do.
std::optional<std::string> refuses_sm90(const problem::Problem& problem);

/// Bytes that an L2 miss fetches from memory (CUtensorMapL2promotion). 256 reach beyond a row of the box, to data that other CTAs read
/// later. Decode, which is bound by memory and reads K and V once, is 2 to 5 % faster with 128; other passes are level.
enum class L2Fetch { bytes_128 = 2, bytes_256 = 3 };

/// A map of [batch, seqlen, heads, dim] for boxes of `rows` rows by 64 columns; only the first `seqlen` rows exist, what lies beyond
/// arrives as zeros.
device::TensorMap sm90_tensor_map(const TensorView& view, int rows, std::int64_t seqlen, L2Fetch fetch = L2Fetch::bytes_256);
/// The same for boxes of 64 columns by `heads` consecutive heads by `queries`: dimensions dim, head in its group, seqlen, group, batch.
device::TensorMap sm90_packed_tensor_map(const TensorView& view, int queries, int heads);

/// Sets the maps of q, dout, k and v, for boxes of this many rows.
void sm90_set_backward_maps(device::Sm90Args& args, const problem::Buffers& buffers, int rows_q, std::int64_t seqlen_q, int rows_kv,
                            std::int64_t seqlen_kv);

/// The arguments of a part whose keys are spread over ranges: some in its own memory, some in a buffer of received keys.
device::SpreadArgs sm90_spread_args(const device::Sm90Args& args, const problem::Buffers& buffers, std::int64_t keys, int box_rows,
                                    int tile_rows);
/// Maps of reads that come as tiles of `rows` queries.
void sm90_set_pair_maps(device::Sm90Args& args, const std::vector<PairTile>& tiles, const problem::Buffers& buffers, int rows);

/// How many keys the tensor maps cover: those that the mask may keep for some query. Memory beyond them is never read.
std::int64_t sm90_keys_in_reach(const problem::Problem& problem, const Sm90Mask& mask);

/// Everything but maps, order, tables and workspace.
device::Sm90Args sm90_args(const problem::Problem& problem, const problem::Buffers& buffers, const Sm90Mask& mask);

}  // namespace foveal::cuda
