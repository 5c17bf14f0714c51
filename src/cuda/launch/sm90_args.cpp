#include "cuda/launch/sm90_args.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "cuda/launch/attention_args.h"
#include "cuda/score/score_emit.h"

namespace foveal::cuda {
namespace {

constexpr std::int64_t piece = 8;  // elements of 16 bytes

/// Why TMA cannot read, or 16-byte stores not write, a tensor.
std::optional<std::string> refuses_layout(const char* name, const problem::TensorSpec& t) {
  if (!t.present) return std::nullopt;
  if (t.sizes[3] % piece != 0) return base::join(name, ": dim ", t.sizes[3], " is not a multiple of 8");
  if (!t.aligned) return base::join(name, ": its address is not a multiple of 16 bytes");
  if (t.strides[3] != 1) return base::join(name, ": stride ", t.strides[3], " of its last dimension is not 1");
  for (int d = 0; d < 3; ++d) {
    const std::int64_t stride = t.strides[static_cast<std::size_t>(d)];
    if (t.sizes[static_cast<std::size_t>(d)] > 1 && (stride <= 0 || stride % piece != 0 || stride >= std::int64_t{1} << 39)) {
      return base::join(name, ": stride ", stride, " is not a positive multiple of 8");
    }
  }
  return std::nullopt;
}

/// A map for boxes of 128 bytes of the first dimension by box[1], box[2], ... of the others; elements outside the tensor arrive as zeros.
/// strides_bytes begins with the second dimension.
template <std::size_t rank>
device::TensorMap encode(DType dtype, void* data, const std::array<std::uint64_t, rank>& dims,
                         const std::array<std::uint64_t, rank - 1>& strides_bytes, std::array<unsigned, rank> box,
                         L2Fetch fetch = L2Fetch::bytes_256) {
  if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0) {
    base::fail(ErrorCode::invalid_argument, "a tensor begins at ", data,
               ", no multiple of 16 bytes as those that were planned for; plan with tensors like it");
  }
  box[0] = 128 / static_cast<unsigned>(size_of(dtype));
  std::array<unsigned, rank> steps;
  steps.fill(1);
  constexpr int bits8 = 0, bits16 = 1, bits32 = 2, float16 = 6, float32 = 7, bfloat16 = 9, no_interleave = 0, swizzle_128_bytes = 3,
                zeros_outside = 0;
  driver::TensorMap map;
  const int type = dtype == DType::f32    ? float32
                   : dtype == DType::bf16 ? bfloat16
                   : dtype == DType::i32  ? bits32
                   : dtype == DType::i16  ? bits16
                   : size_of(dtype) == 1  ? bits8
                                          : float16;
  driver::call.tensor_map_encode_tiled(&map, type, rank, data, dims.data(), strides_bytes.data(), box.data(), steps.data(), no_interleave,
                                       swizzle_128_bytes, static_cast<int>(fetch), zeros_outside);
  device::TensorMap copy;
  static_assert(sizeof copy == sizeof map);
  std::memcpy(&copy, &map, sizeof map);
  return copy;
}

}  // namespace

std::optional<std::string> refuses_sm90(const problem::Problem& p) {
  if (p.dtype != DType::bf16 && p.dtype != DType::f16) return base::join("dtype ", to_string(p.dtype), " is not bf16 or f16");
  if (!(p.scale > 0)) return base::join("scale ", p.scale, " is not positive");
  if (auto reason = refuses_params(p)) return reason;
  if (is_long(p)) return "the score is too long to stand beside wgmma for every pair";
  if (p.total_q == 0 || p.total_kv == 0 || p.heads_q == 0 || p.seqlen_q == 0 || p.seqlen_kv == 0) return "a size is 0";
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max() / 2;
  const std::int64_t tasks = (std::max(p.seqlen_q, p.seqlen_kv) / 64 + 1) * p.heads_q * p.batch;
  if (p.total_q > most || p.total_kv > most || tasks > most) return "too many tokens, heads or sequences for 32-bit coordinates";
  if (std::abs(p.attention.q_offset) > most || std::abs(p.attention.kv_offset) > most) return "an offset exceeds 32 bits";
  using Named = std::pair<const char*, const problem::TensorSpec*>;
  for (const auto& [name, tensor] : {Named{"q", &p.q}, Named{"k", &p.k}, Named{"v", &p.v}, Named{"out", &p.out}, Named{"dout", &p.dout},
                                     Named{"dq", &p.dq}, Named{"dk", &p.dk}, Named{"dv", &p.dv}}) {
    if (auto reason = refuses_layout(name, *tensor)) return reason;
  }
  return std::nullopt;
}

namespace {

std::uint64_t size_in(const TensorView& view, std::size_t d) { return static_cast<std::uint64_t>(view.sizes[d]); }
/// In bytes. TMA wants a multiple of 16 also where the size is 1 and the stride does not matter.
std::uint64_t stride_in(const TensorView& view, std::size_t d) {
  return view.sizes[d] > 1 ? static_cast<std::uint64_t>(view.strides[d]) * size_of(view.dtype) : std::uint64_t{16};
}

}  // namespace

device::TensorMap sm90_tensor_map(const TensorView& view, int rows, std::int64_t seqlen, L2Fetch fetch) {
  return encode<4>(view.dtype, view.data,
                   {size_in(view, 3), std::min(size_in(view, 1), static_cast<std::uint64_t>(seqlen)), size_in(view, 2), size_in(view, 0)},
                   {stride_in(view, 1), stride_in(view, 2), stride_in(view, 0)}, {0, static_cast<unsigned>(rows), 1, 1}, fetch);
}

device::TensorMap sm90_packed_tensor_map(const TensorView& view, int queries, int heads) {
  const auto group = static_cast<std::uint64_t>(heads);
  return encode<5>(view.dtype, view.data, {size_in(view, 3), group, size_in(view, 1), size_in(view, 2) / group, size_in(view, 0)},
                   {stride_in(view, 2), stride_in(view, 1), group * stride_in(view, 2), stride_in(view, 0)},
                   {0, static_cast<unsigned>(heads), static_cast<unsigned>(queries), 1, 1});
}

void sm90_set_backward_maps(device::Sm90Args& args, const problem::Buffers& buffers, int rows_q, std::int64_t seqlen_q, int rows_kv,
                            std::int64_t seqlen_kv) {
  args.q = sm90_tensor_map(buffers.q, rows_q, seqlen_q), args.dout = sm90_tensor_map(buffers.dout, rows_q, seqlen_q);
  args.k = sm90_tensor_map(buffers.k, rows_kv, seqlen_kv), args.v = sm90_tensor_map(buffers.v, rows_kv, seqlen_kv);
}

void sm90_set_pair_maps(device::Sm90Args& args, const std::vector<PairTile>& tiles, const problem::Buffers& buffers, int rows) {
  static_assert(max_pair_tiles == device::kMaxPairTiles);
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    const PairTile& tile = tiles[t];
    const TensorView& view = buffers.params[tile.param];
    constexpr std::uint64_t unused = 16;
    const auto stride = [&](int d) {
      return static_cast<std::uint64_t>(view.strides[static_cast<std::size_t>(d)]) * static_cast<std::uint64_t>(tile.element_bytes);
    };
    std::array<std::uint64_t, 4> dims{static_cast<std::uint64_t>(tile.columns), static_cast<std::uint64_t>(tile.rows), 1, 1};
    std::array<std::uint64_t, 3> strides{stride(tile.row), unused, unused};
    for (std::size_t i = 0; i < tile.others.size(); ++i) {
      dims[2 + i] = static_cast<std::uint64_t>(view.sizes[static_cast<std::size_t>(tile.others[i])]);
      strides[1 + i] = stride(tile.others[i]);
    }
    args.pairs[t] = encode<4>(view.dtype, view.data, dims, strides, {0, static_cast<unsigned>(rows), 1, 1});
  }
}

device::SpreadArgs sm90_spread_args(const device::Sm90Args& args, const problem::Buffers& buffers, std::int64_t keys, int box_rows,
                                    int tile_rows) {
  static_assert(Part::most_key_ranges == device::kMaxKeyRanges);
  device::SpreadArgs with_keys{args, {}};
  device::SpreadKeys& spread = with_keys.spread;
  const Part& part = buffers.part;
  // If no keys were received, the maps of the other keys take their place: no range then points to received ones.
  const auto set = [&](const TensorView& own, const TensorView& sent, const device::TensorMap& map, device::TensorMap& sent_map,
                       device::TensorMap& tile, device::TensorMap& sent_tile) {
    sent_map = sent.present() ? sm90_tensor_map(sent, box_rows, sent.sizes[1]) : map;
    tile = box_rows == tile_rows ? map : sm90_tensor_map(own, tile_rows, keys);
    sent_tile = box_rows == tile_rows ? sent_map : sent.present() ? sm90_tensor_map(sent, tile_rows, sent.sizes[1]) : tile;
  };
  set(buffers.k, part.k_received, args.k, spread.k, spread.tile_k, spread.sent_tile_k);
  set(buffers.v, part.v_received, args.v, spread.v, spread.tile_v, spread.sent_tile_v);
  spread.count = static_cast<int>(part.key_range_count);
  spread.heads = static_cast<int>(buffers.k.sizes[2]);
  spread.failed = part.failed;
  for (std::size_t i = 0; i < part.key_range_count; ++i)
    if (part.key_ranges[i].word != nullptr && (spread.words == nullptr || part.key_ranges[i].word < spread.words))
      spread.words = part.key_ranges[i].word;
  for (std::size_t i = 0; i < part.key_range_count; ++i) {
    const Part::KeyRange& s = part.key_ranges[i];
    const int word = !s.received ? device::kOwnKeys : s.word == nullptr ? device::kHereKeys : static_cast<int>(s.word - spread.words);
    spread.range[i] = {static_cast<int>(s.first), static_cast<int>(s.row - s.first), word, s.arrived, static_cast<int>(s.slices)};
  }
  return with_keys;
}

std::int64_t sm90_keys_in_reach(const problem::Problem& p, const Sm90Mask& mask) {
  if (p.paged) return p.page_size();
  if (p.spread) return p.k.sizes[1];
  if (p.ragged_kv()) return p.total_kv;
  return std::clamp<std::int64_t>(p.seqlen_q + mask.band.high, 1, p.seqlen_kv);
}

namespace {

/// Of tensors that are stored to without a tensor map; encode() checks the others.
void check_stored(const char* name, const TensorView& view) {
  if (reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0)
    base::fail(ErrorCode::invalid_argument, name, ": begins at ", view.data,
               ", no multiple of 16 bytes as that which was planned for; plan with tensors like it");
}

}  // namespace

device::Sm90Args sm90_args(const problem::Problem& p, const problem::Buffers& buffers, const Sm90Mask& mask) {
  check_stored("out", buffers.out);
  check_stored("dq", buffers.dq), check_stored("dk", buffers.dk), check_stored("dv", buffers.dv);
  device::Sm90Args args{};
  args.attention = attention_args(p, buffers);
  args.scale = static_cast<float>(args.attention.scale);
  args.band_low = static_cast<int>(mask.band.low);
  args.band_high = static_cast<int>(mask.band.high);
  return args;
}

}  // namespace foveal::cuda
