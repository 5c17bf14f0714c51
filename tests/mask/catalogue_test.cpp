#include "mask/catalogue.h"

#include <functional>
#include <random>

namespace foveal::test {
namespace {

using namespace symbols;

BoundParam bind(const std::string& name, std::vector<std::int64_t> shape, Type type,
                const std::function<std::int32_t(const std::vector<std::int64_t>&)>& value) {
  std::int64_t size = 1;
  for (std::int64_t extent : shape) size *= extent;
  auto data = std::make_shared<std::vector<std::int32_t>>();
  std::vector<std::int64_t> at(shape.size());
  for (std::int64_t n = 0; n < size; ++n) {
    std::int64_t rest = n;
    for (std::size_t i = shape.size(); i-- > 0;) {
      at[i] = rest % shape[i];
      rest /= shape[i];
    }
    data->push_back(value(at));
  }
  return {Param(name, std::move(shape), type), std::move(data)};
}

std::int64_t longest() { return std::max(seqlen_q, seqlen_kv); }

/// Documents of uneven lengths; the same in every batch row but for a shift.
constexpr std::int64_t document_starts[] = {0, 40, 41, 128, 200, 263, 400};
constexpr std::int64_t documents = 6;

std::int32_t document_of(std::int64_t position) {
  std::int32_t n = 0;
  while (n + 1 < documents && position >= document_starts[n + 1]) ++n;
  return n;
}

/// The bits of `code` at even (0) or odd (1) places: one coordinate of a Morton index.
Expr morton_axis(const Expr& code, int axis) {
  Expr result(0);
  for (int bit = 0; bit < 5; ++bit) result = result + floor_div(code, 1 << (2 * bit + axis)) % 2 * (1 << bit);
  return result;
}

}  // namespace

std::vector<MaskCase> mask_catalogue() {
  const BoundParam ids = bind("ids", {longest()}, Type::integer, [](const auto& i) { return document_of(i[0]); });
  const BoundParam batch_ids =
      bind("batch_ids", {batch_size, longest()}, Type::integer, [](const auto& i) { return document_of(i[1] + 30 * i[0]); });
  const BoundParam offsets =
      bind("offsets", {documents + 1}, Type::integer, [](const auto& i) { return static_cast<std::int32_t>(document_starts[i[0]]); });
  const BoundParam lengths = bind("lengths", {batch_size}, Type::integer, [](const auto& i) { return i[0] == 0 ? 277 : 150; });
  const BoundParam is_global = bind("is_global", {longest()}, Type::boolean, [](const auto& i) { return i[0] < 3 || i[0] == 150; });
  const BoundParam dropped =
      bind("dropped", {batch_size, seqlen_q}, Type::boolean, [](const auto& i) { return (i[1] * 7919 + i[0]) % 5 == 0 || i[1] / 64 == 2; });
  std::mt19937 random(7);
  const BoundParam dense = bind("dense", {batch_size, 1, seqlen_q, seqlen_kv}, Type::boolean,
                                [&](const auto& i) { return i[2] / 32 == i[3] / 32 || (i[2] < 100 && random() % 3 == 0); });
  const BoundParam image = bind("image", {seqlen_kv}, Type::integer, [](const auto& i) { return static_cast<std::int32_t>(i[0] / 80); });
  const BoundParam interval =
      bind("interval", {5, 2}, Type::integer, [](const auto& i) { return static_cast<std::int32_t>(50 * (i[0] + i[1])); });
  const BoundParam ancestors = bind("ancestors", {16, 16}, Type::boolean, [](const auto& i) {
    for (std::int64_t node = i[0];; node = (node - 1) / 2) {
      if (node == i[1]) return 1;
      if (node == 0) return 0;
    }
  });
  const BoundParam top = bind("top", {batch_size, heads, 5, 2}, Type::integer,
                              [](const auto& i) { return static_cast<std::int32_t>((i[2] + 3 * i[3] + i[0]) % 6); });
  const BoundParam block_map =
      bind("block_map", {batch_size, heads, 5, 6}, Type::boolean, [](const auto& i) { return (i[2] + i[3]) % 3 == 0; });
  const BoundParam tile_size = bind("tile_size", {6}, Type::integer, [](const auto& i) { return i[0] == 2 ? 10 : 64; });
  const BoundParam kv_start =
      bind("kv_start", {heads, seqlen_q}, Type::integer, [](const auto& i) { return static_cast<std::int32_t>(i[1] / 2); });
  const BoundParam kv_end =
      bind("kv_end", {heads, seqlen_q}, Type::integer, [](const auto& i) { return static_cast<std::int32_t>(i[1] + 9); });
  const BoundParam q_start =
      bind("q_start", {heads, seqlen_kv}, Type::integer, [](const auto& i) { return static_cast<std::int32_t>(i[1] - 5); });
  const BoundParam q_end =
      bind("q_end", {heads, seqlen_kv}, Type::integer, [](const auto& i) { return static_cast<std::int32_t>(i[1] + 70); });
  const BoundParam prefix_of =
      bind("prefix_of", {documents}, Type::integer, [](const auto& i) { return static_cast<std::int32_t>(i[0] / 3 * 3); });
  const BoundParam flag = bind("flag", {}, Type::integer, [](const auto&) { return 13; });

  const auto within = [](const Expr& low, const Expr& x, const Expr& high) { return (low <= x) & (x < high); };
  const Expr distance = q_idx - kv_idx;

  // Block diffusion over [noisy, clean], length 2 L.
  constexpr std::int64_t L = 130, n = 10;
  const Expr noisy_q = q_idx < L, noisy_kv = kv_idx < L;
  const Expr bq = floor_div(q_idx % L, n), bkv = floor_div(kv_idx % L, n);
  const Expr diffusion = ((bq == bkv) & (noisy_q == noisy_kv)) | ((bq > bkv) & noisy_q & !noisy_kv) | ((bq >= bkv) & !noisy_q & !noisy_kv);

  // Neighbourhoods on a 16-wide image.
  constexpr std::int64_t width = 16, height = 20, radius = 3;
  const auto near = [](const Expr& q, const Expr& kv, std::int64_t size) {
    return abs(clamp(q, radius, size - 1 - radius) - kv) <= radius;
  };
  const Expr natten = near(floor_div(q_idx, width), floor_div(kv_idx, width), height) & near(q_idx % width, kv_idx % width, width);
  const auto tiled = [](const Expr& i) {  // tiles of 4 x 4 in row-major order
    const Expr tile = floor_div(i, 16), inner = i % 16;
    return std::pair{floor_div(tile, 4) * 4 + floor_div(inner, 4), tile % 4 * 4 + inner % 4};
  };
  const auto [tq_row, tq_column] = tiled(q_idx);
  const auto [tk_row, tk_column] = tiled(kv_idx);
  const Expr natten_tiled = near(tq_row, tk_row, height) & near(tq_column, tk_column, width);
  const Expr natten_morton =
      near(morton_axis(q_idx, 1), morton_axis(kv_idx, 1), 32) & near(morton_axis(q_idx, 0), morton_axis(kv_idx, 0), 32);

  // Sliding tiles: 2 x 2 x 3 tiles of 24 tokens, text behind the images.
  constexpr std::int64_t tile_tokens = 24, images = 12 * tile_tokens;
  const auto slides = [](const Expr& q, const Expr& kv, std::int64_t tiles, std::int64_t kernel) {
    const std::int64_t left = kernel / 2, right = kernel / 2 - (1 - kernel % 2);
    const Expr centre = clamp(q, left, tiles - 1 - right);
    return (kv >= centre - left) & (kv <= centre + right);
  };
  const Expr qt = floor_div(q_idx, tile_tokens), kt = floor_div(kv_idx, tile_tokens);
  const Expr sta = (slides(floor_div(qt, 6), floor_div(kt, 6), 2, 2) & slides(floor_div(qt, 3) % 2, floor_div(kt, 3) % 2, 2, 1) &
                    slides(qt % 3, kt % 3, 3, 2) & (q_idx < images) & (kv_idx < images)) |
                   (kv_idx >= images) | (q_idx >= images);

  const Expr top_tile = floor_div(kv_idx, 64), q_tile = floor_div(q_idx, 64);
  const Expr doc_q = ids.param(q_idx), doc_kv = ids.param(kv_idx);
  constexpr std::int64_t text = 22, frame = 60;

  return {
      {"noop", Expr(true)},
      {"nothing", Expr(false)},
      {"causal", causal()},
      {"inverse_causal", q_idx <= kv_idx},
      {"causal_bottom_right", causal_bottom_right()},
      {"row_cut", q_idx < 101},
      {"window", window(33)},
      {"causal_window", causal() & window(32)},
      {"band", (0 <= distance) & (distance <= 64)},
      {"causal_and_ahead", causal() & (q_idx <= kv_idx + 32)},
      {"global_causal", causal() & (distance > 64)},
      {"two_sided_gap", abs(distance) > 50},
      {"dilated", dilated(40, 3), Exact::soundly},
      {"global_tokens", global_tokens(20, is_global.param), Exact::yes, {is_global}},
      {"prefix_lm", prefix_lm(70)},
      {"document", document(ids.param), Exact::yes, {ids}},
      {"document_per_batch", document(batch_ids.param), Exact::yes, {batch_ids}},
      {"causal_document", causal() & document(ids.param), Exact::yes, {ids}},
      {"document_relative",
       (doc_q == doc_kv) & (q_idx - offsets.param(doc_q) <= 20 + kv_idx - offsets.param(doc_kv)),
       Exact::soundly,
       {ids, offsets}},
      {"packed_causal_document", (kv_idx >= offsets.param(doc_q)) & causal(), Exact::yes, {ids, offsets}},
      {"shared_prefix",
       ((kv_idx >= offsets.param(doc_q)) & causal()) |
           ((doc_q != prefix_of.param(doc_q)) &
            within(offsets.param(prefix_of.param(doc_q)), kv_idx, offsets.param(prefix_of.param(doc_q) + 1))),
       Exact::yes,
       {ids, offsets, prefix_of}},
      {"batchify", (floor_div(q_idx, 50) == floor_div(kv_idx, 50)) & (kv_idx % 50 <= q_idx % 50), Exact::soundly},
      {"batchify_blocks", floor_div(q_idx, 50) == floor_div(kv_idx, 50)},
      {"two_ranges", (kv_idx < 100) | (kv_idx >= 250)},
      {"symbolic_limit", q_idx < (floor_div(seqlen_q, 32) + floor_div(seqlen_kv, 32)) * 8},
      {"padding", padding(lengths.param), Exact::yes, {lengths}},
      {"batch_flip", where(batch % 2 == 0, causal(), kv_idx >= q_idx)},
      {"random_rows", !dropped.param(batch, q_idx), Exact::yes, {dropped}},
      {"dense", to_boolean(dense.param(batch, 0, q_idx, kv_idx)), Exact::yes, {dense}},
      {"block_diffusion", diffusion, Exact::soundly},
      {"vision_cross",
       within(interval.param(image.param(kv_idx), 0), q_idx, interval.param(image.param(kv_idx), 1)),
       Exact::yes,
       {image, interval}},
      {"tree_causal",
       (kv_idx < 200) | (within(200, kv_idx, 216) & to_boolean(ancestors.param(q_idx % 16, clamp(kv_idx - 200, 0, 15)))),
       Exact::yes,
       {ancestors}},
      {"tree_training", (kv_idx < 75) | ((floor_div(q_idx, 8) == floor_div(kv_idx - 75, 8)) & ((kv_idx - 75) % 8 <= q_idx % 8)),
       Exact::soundly},
      {"natten_2d", natten},
      {"natten_tiled", natten_tiled, Exact::soundly},
      {"natten_morton", natten_morton, Exact::soundly},
      {"sliding_tile", sta},
      {"svg_spatial", (q_idx < text) | (kv_idx < text) | (abs(distance) < 2 * frame / 32 * 32)},
      {"svg_temporal", (q_idx < text) | (kv_idx < text) | (abs((q_idx - text) % frame - (kv_idx - text) % frame) < 13)},
      {"vsa_top_k", (top.param(batch, head, q_tile, 0) == top_tile) | (top.param(batch, head, q_tile, 1) == top_tile), Exact::yes, {top}},
      {"vsa_block_map", to_boolean(block_map.param(batch, head, q_tile, top_tile)), Exact::yes, {block_map}},
      {"vsa_padding", kv_idx % 64 < tile_size.param(top_tile), Exact::yes, {tile_size}},
      {"range_masks",
       within(kv_start.param(head, q_idx), kv_idx, kv_end.param(head, q_idx)) &
           within(q_start.param(head, kv_idx), q_idx, q_end.param(head, kv_idx)) & causal(),
       Exact::yes,
       {kv_start, kv_end, q_start, q_end}},
      {"decode_offset", kv_idx <= q_idx + flag.param(), Exact::yes, {flag}},
      {"composite", (causal() & window(64)) | (prefix_lm(20) & document(ids.param)), Exact::yes, {ids}},
      {"real_natten", abs(q_idx / 16 - kv_idx / 16) <= 3, Exact::soundly},
  };
}

}  // namespace foveal::test
