#include "cuda/tune/sm90_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace foveal::cuda {
namespace {

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

device::Divisor divisor(std::int64_t value) {
  unsigned shift = 0;
  while (std::int64_t{1} << shift < value) ++shift;
  const auto multiplier =
      ((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - static_cast<std::uint64_t>(value))) / static_cast<std::uint64_t>(value) +
      1;
  return {static_cast<int>(value), static_cast<unsigned>(multiplier), shift};
}

/// The time of the busiest CTA when sections of so many heads are interleaved.
double makespan(std::int64_t section_heads, const std::vector<double>& row_cost, std::int64_t all_heads, int grid, bool first_row_first,
                bool to_and_fro) {
  std::vector<double> busy(static_cast<std::size_t>(grid), 0.0);
  std::int64_t index = 0;
  for (std::int64_t first = 0; first < all_heads; first += section_heads) {
    const std::int64_t heads = std::min(section_heads, all_heads - first);
    for (std::size_t step = 0; step < row_cost.size(); ++step) {
      const double cost = row_cost[first_row_first ? step : row_cost.size() - 1 - step];
      for (std::int64_t head = 0; head < heads; ++head, ++index) {
        const std::int64_t round = index / grid, place = index % grid;
        busy[static_cast<std::size_t>(to_and_fro && (round & 1) ? grid - 1 - place : place)] += cost;
      }
    }
  }
  return *std::max_element(busy.begin(), busy.end());
}

}  // namespace

std::vector<Sm90TileRange> sm90_row_tiles(const Sm90Mask& mask, std::int64_t rows_length, int rows_block, std::int64_t length, int block,
                                          bool transposed) {
  std::vector<Sm90TileRange> tiles;
  for (std::int64_t begin = 0; begin < rows_length; begin += rows_block) {
    const std::int64_t end = std::min(begin + rows_block, rows_length);
    const std::int64_t low = transposed ? -mask.band.high : mask.band.low, high = transposed ? -mask.band.low : mask.band.high;
    const std::int64_t first = std::max<std::int64_t>(0, begin + low), last = std::min(length, end + high);
    tiles.push_back({first / block, last > first ? divide_up(last, block) : first / block});
  }
  return tiles;
}

std::vector<double> sm90_row_cost(const Sm90Mask& mask, std::int64_t rows_length, int rows_block, std::int64_t length, int block,
                                  bool transposed) {
  constexpr double ends = 0.7;  // of a tile's time
  std::vector<double> cost;
  for (const Sm90TileRange& tiles : sm90_row_tiles(mask, rows_length, rows_block, length, block, transposed))
    cost.push_back(ends + static_cast<double>(tiles.end - tiles.begin));
  return cost;
}

Sm90Dealing sm90_deal(const std::vector<double>& row_cost, std::int64_t heads, std::int64_t batch, std::int64_t head_bytes,
                      std::size_t l2_bytes, double spilling_cost, int multiprocessors, bool first_row_first, bool in_turns,
                      bool sequences_inside) {
  const std::int64_t all_heads = heads * batch, rows = static_cast<std::int64_t>(row_cost.size()), tasks = all_heads * rows;
  const auto order = [&](std::int64_t section_heads) {
    const std::int64_t last = all_heads % section_heads;
    return device::TaskOrder{static_cast<int>(tasks),      static_cast<int>(rows),
                             first_row_first ? 1 : 0,      in_turns ? 0 : 1,
                             sequences_inside ? 1 : 0,     divisor(sequences_inside ? batch : heads),
                             divisor(section_heads),       divisor(last == 0 ? section_heads : last),
                             divisor(section_heads * rows)};
  };
  const bool even = *std::min_element(row_cost.begin(), row_cost.end()) == *std::max_element(row_cost.begin(), row_cost.end());
  constexpr int most_rows_in_turn = 4;  // of one head that run at a time
  const std::int64_t wanted = std::max<std::int64_t>(in_turns ? multiprocessors / most_rows_in_turn : 1, sequences_inside ? batch : 1);
  const std::int64_t least = std::min(wanted, all_heads);
  const int grid = static_cast<int>(std::min<std::int64_t>(multiprocessors, tasks));
  constexpr std::int64_t most_tasks = 1 << 16;  // more need no play: they even out
  const auto time_of = [&](std::int64_t section_heads) {
    if (tasks <= most_tasks) return makespan(section_heads, row_cost, all_heads, grid, first_row_first, !in_turns);
    return std::accumulate(row_cost.begin(), row_cost.end(), 0.0) * static_cast<double>(all_heads) / grid;
  };
  if (even)  // one head after the other: its keys and values stay in L2
    return {order(least), static_cast<double>(divide_up(tasks, grid)) * row_cost.front()};

  const std::int64_t fitting =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(l2_bytes) * 6 / 10 / std::max<std::int64_t>(1, head_bytes));
  const auto heads_of_rounds = [&](std::int64_t rounds) { return divide_up(rounds * grid, rows); };
  double best_time = 0;
  std::int64_t best = least;
  for (std::int64_t section : {fitting, heads_of_rounds(1), heads_of_rounds(2), heads_of_rounds(3), heads_of_rounds(4), heads_of_rounds(6),
                               heads_of_rounds(8), all_heads}) {
    section = std::clamp(section, least, all_heads);
    const double doublings = std::log2(std::max(1.0, static_cast<double>(section) / static_cast<double>(fitting)));
    const double time = (1 + spilling_cost * doublings) * time_of(section);
    if (best_time == 0 || time < best_time) {
      best_time = time;
      best = section;
    }
  }
  return {order(best), best_time};
}

Sm90SplitDealing sm90_deal_splits(const std::vector<Sm90TileRange>& rows, std::int64_t heads, std::int64_t batch, std::int64_t head_bytes,
                                  std::size_t l2_bytes, double spilling_cost, int multiprocessors) {
  constexpr double start = 0.1;  // of a tile's time
  std::int64_t most = 1;
  for (const Sm90TileRange& row : rows) most = std::max(most, row.end - row.begin);
  const std::int64_t enough = 64 * multiprocessors;  // tasks: more even out anyway
  most = std::clamp<std::int64_t>(enough / (static_cast<std::int64_t>(rows.size()) * heads * batch), 1, std::min<std::int64_t>(most, 16));
  Sm90SplitDealing best{};
  for (int splits = 1; splits <= most; ++splits) {
    const auto before = [&](std::int64_t tile, int split) { return (tile + splits - 1 - split) / splits; };  // tiles of the split
    std::vector<double> cost;
    for (const Sm90TileRange& row : rows)
      for (int split = 0; split < splits; ++split)
        cost.push_back(start + static_cast<double>(before(row.end, split) - before(row.begin, split)));
    const Sm90Dealing dealing = sm90_deal(cost, heads, batch, head_bytes, l2_bytes, spilling_cost, multiprocessors, false);
    if (splits == 1 || dealing.time < best.dealing.time) best = {divisor(splits), dealing};
  }
  return best;
}

device::Divisor sm90_forward_splits(const problem::Problem& p, const Sm90ForwardConfig& config, int multiprocessors) {
  if (!sm90_has_few_queries(p)) return divisor(1);
  const auto rows = sm90_row_tiles(sm90_mask(p), p.seqlen_q, config.queries(), p.seqlen_kv, config.block_kv, false);
  std::int64_t tiles = 0;
  for (const Sm90TileRange& row : rows) tiles = std::max(tiles, row.end - row.begin);
  const std::int64_t tasks = p.batch * p.heads_q / config.packed_heads * static_cast<std::int64_t>(rows.size());
  // In the time of a tile while all multiprocessors read. Half of them take all that memory gives.
  constexpr double alone = 0.45, ends = 1, merging = 2.5;
  const auto time = [&](std::int64_t splits) {
    const double busy = std::min(1.0, static_cast<double>(tasks * splits) / multiprocessors);
    const double task = std::max(alone, busy) * static_cast<double>(divide_up(tiles, splits)) + ends;
    return static_cast<double>(divide_up(tasks * splits, multiprocessors)) * task + (splits > 1 ? merging : 0);
  };
  int best = 1;
  constexpr int most = 128;
  for (int splits = 2; splits <= std::min<std::int64_t>(most, tiles); ++splits)
    if (time(splits) < time(best)) best = splits;
  return divisor(best);
}

}  // namespace foveal::cuda
