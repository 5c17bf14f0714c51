#include "cuda/tune/sm90.h"

#include <algorithm>

#include "base/check.h"

namespace foveal::cuda {
namespace {

constexpr std::int64_t unlimited = std::int64_t{1} << 30;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// A tile in shared memory: chunks of 64 columns, 128 bytes a row.
std::size_t tile_bytes(int rows, std::int64_t columns) { return static_cast<std::size_t>(divide_up(columns, 64) * rows * 128); }

/// The time of the busiest CTA under an order.
double makespan(const device::TaskOrder& order, const std::vector<double>& row_cost, std::int64_t all_heads, int grid) {
  std::vector<double> busy(static_cast<std::size_t>(grid), 0.0);
  std::int64_t index = 0;
  for (std::int64_t first = 0; first < all_heads; first += order.section_heads) {
    const std::int64_t heads = std::min<std::int64_t>(order.section_heads, all_heads - first);
    for (int step = 0; step < order.rows; ++step) {
      const double cost = row_cost[static_cast<std::size_t>(order.first_row_first ? step : order.rows - 1 - step)];
      for (std::int64_t head = 0; head < heads; ++head, ++index) {
        const std::int64_t round = index / grid, place = index % grid;
        busy[static_cast<std::size_t>(round & 1 ? grid - 1 - place : place)] += cost;
      }
    }
  }
  return *std::max_element(busy.begin(), busy.end());
}

}  // namespace

const char* to_string(Sm90Tiles tiles) {
  switch (tiles) {
    case Sm90Tiles::all:
      return "all";
    case Sm90Tiles::causal:
      return "causal";
    case Sm90Tiles::band:
      return "band";
    case Sm90Tiles::list:
      return "list";
  }
  return "";
}

Sm90Mask sm90_mask(const problem::Problem& p) {
  Sm90Mask mask;
  mask.band = {-unlimited, unlimited};
  if (!p.has_mask()) return mask;
  const auto length = [&](std::int64_t n) { return p.varlen ? std::nullopt : std::optional(n); };
  const auto band = mask::find_band(p.score->mask, length(p.seqlen_q), length(p.seqlen_kv));
  if (!band) {
    mask.tiles = Sm90Tiles::list;
    return mask;
  }
  const std::int64_t shift = p.attention.q_offset - p.attention.kv_offset;
  mask.band = {std::clamp(band->low + shift, -unlimited, unlimited), std::clamp(band->high + shift, -unlimited, unlimited)};
  const bool low = mask.band.low > -p.seqlen_q, high = mask.band.high < p.seqlen_kv - 1;
  mask.tiles = low ? Sm90Tiles::band : high ? Sm90Tiles::causal : Sm90Tiles::all;
  return mask;
}

std::size_t Sm90ForwardConfig::shared_bytes(const problem::Problem& p) const {
  const std::size_t tiles = static_cast<std::size_t>(query_stages) * tile_bytes(block_q(), p.head_dim) +
                            static_cast<std::size_t>(stages) * (tile_bytes(block_kv, p.head_dim) + tile_bytes(block_kv, p.head_dim_v));
  const auto barriers = static_cast<std::size_t>(16 * query_stages + 32 * stages);
  return tiles + barriers + static_cast<std::size_t>(p.has_mask() ? block_kv : 0);
}

std::string Sm90ForwardConfig::text() const {
  return base::join(block_q(), "x", block_kv, " stages ", stages, query_stages > 1 ? " queries ahead" : "", take_turns ? " in turns" : "");
}

void Sm90ForwardConfig::set(jit::Constants& constants) const {
  constants.set("kBlockKv", block_kv)
      .set("kConsumers", consumers)
      .set("kStages", stages)
      .set("kQueryStages", query_stages)
      .set("kProducerRegisters", consumers == 3 ? 32 : 24)
      .set("kConsumerRegisters", consumers == 3 ? 160 : 240)
      .set("kTakeTurns", take_turns)
      .set("kOrdered", ordered);
}

std::size_t Sm90BackwardConfig::shared_bytes(const problem::Problem& p) const {
  const std::size_t tiles = tile_bytes(block_kv, p.head_dim) + tile_bytes(block_kv, p.head_dim_v) +
                            static_cast<std::size_t>(stages) * (tile_bytes(block_q, p.head_dim) + tile_bytes(block_q, p.head_dim_v)) +
                            2 * tile_bytes(block_kv, block_q);
  return tiles + static_cast<std::size_t>(2 * stages * 4 * block_q + 32 + 32 * stages);
}

std::string Sm90BackwardConfig::text() const { return base::join(block_q, "x", block_kv, " stages ", stages); }

void Sm90BackwardConfig::set(jit::Constants& constants) const { constants.set("kBlockQ", block_q).set("kStages", stages); }

// Chosen by measurement on an H200 (docs/gpu-performance.md).
std::vector<Sm90ForwardConfig> sm90_forward_candidates(const problem::Problem& p) {
  const std::int64_t dim = std::max(p.head_dim, p.head_dim_v);
  const bool plain = !p.has_score_mod() && sm90_mask(p).tiles != Sm90Tiles::list && p.attention.dropout.p == 0;
  const bool causal = sm90_mask(p).tiles != Sm90Tiles::all;
  const Sm90ForwardConfig two{128, 2, 2, 2, true, false}, three{128, 3, 2, 2, true, false};
  if (dim <= 64) {
    if (!plain) return {two};
    if ((causal && p.seqlen_q <= 1024) || p.seqlen_q <= 128) return {two, three};
    return {three, two};
  }
  if (dim <= 96 && plain) return {{144, 2, 2, 2, true, true}};
  if (dim <= 128) {
    const Sm90ForwardConfig narrow{128, 2, 2, 2, true, true}, wide{160, 2, 2, 2, true, true};
    if (plain && p.seqlen_kv >= (causal ? 8192 : 4096)) return {wide, narrow};
    return plain ? std::vector{narrow, wide} : std::vector{narrow};
  }
  if (dim <= 192) {
    if (p.head_dim_v <= 128) return {{128, 2, 2, 1, true, true}};
    return {{96, 2, 2, 1, false, true}};
  }
  return {{plain ? 80 : 64, 2, 2, 1, false, true}};
}

std::vector<Sm90BackwardConfig> sm90_backward_candidates(const problem::Problem& p) {
  const std::int64_t dim = std::max(p.head_dim, p.head_dim_v);
  const bool plain = !p.has_score_mod() && sm90_mask(p).tiles != Sm90Tiles::list && p.attention.dropout.p == 0 && !p.varlen;
  if (dim <= 64 && plain) return {{128, 2}, {64, 2}};
  return {{64, 2}};
}

std::vector<double> sm90_row_cost(const Sm90Mask& mask, std::int64_t rows_length, int rows_block, std::int64_t length, int block,
                                  bool transposed) {
  constexpr double ends = 0.7;  // of a tile's time
  std::vector<double> cost;
  for (std::int64_t begin = 0; begin < rows_length; begin += rows_block) {
    const std::int64_t end = std::min(begin + rows_block, rows_length);
    const std::int64_t low = transposed ? -mask.band.high : mask.band.low, high = transposed ? -mask.band.low : mask.band.high;
    const std::int64_t first = std::max<std::int64_t>(0, begin + low), last = std::min(length, end + high);
    cost.push_back(ends + static_cast<double>(last > first ? divide_up(last, block) - first / block : 0));
  }
  return cost;
}

device::TaskOrder sm90_task_order(const std::vector<double>& row_cost, std::int64_t heads, std::int64_t batch, std::int64_t head_bytes,
                                  std::size_t l2_bytes, int multiprocessors, bool first_row_first) {
  const std::int64_t all_heads = heads * batch;
  device::TaskOrder order{static_cast<int>(all_heads * static_cast<std::int64_t>(row_cost.size())), static_cast<int>(row_cost.size()),
                          static_cast<int>(heads), 1, first_row_first ? 1 : 0};
  const int grid = std::max(1, std::min(multiprocessors, order.tasks));
  const bool even =
      row_cost.empty() || *std::min_element(row_cost.begin(), row_cost.end()) == *std::max_element(row_cost.begin(), row_cost.end());
  if (even) return order;  // one head after the other: its keys and values stay in L2

  const std::int64_t fitting =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(l2_bytes) * 6 / 10 / std::max<std::int64_t>(1, head_bytes));
  const auto rounds = [&](std::int64_t n) { return divide_up(n * grid, order.rows); };
  constexpr std::int64_t most_tasks = 1 << 16;  // more need no play: they even out
  double best = 0;
  int best_section = 1;
  for (std::int64_t section : {fitting, rounds(2), rounds(4), rounds(8), all_heads}) {
    section = std::clamp<std::int64_t>(section, 1, all_heads);
    order.section_heads = static_cast<int>(section);
    const double spilling = section > fitting ? 1.04 : 1.0;  // reading again what L2 lost
    const double time = order.tasks > most_tasks ? spilling : spilling * makespan(order, row_cost, all_heads, grid);
    if (best == 0 || time < best) {
      best = time;
      best_section = order.section_heads;
    }
  }
  order.section_heads = best_section;
  return order;
}

}  // namespace foveal::cuda
