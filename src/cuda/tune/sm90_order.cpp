#include "cuda/tune/sm90_order.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <queue>

#include "base/check.h"
#include "base/divide.h"

namespace foveal::cuda {
namespace {

/// Heads whose tasks are interleaved.
struct Sections {
  std::int64_t heads, last;  ///< of each section, of the last one
};

/// Calls `visit(cost)` for each task in the order of TaskOrder.
template <class Visit>
void walk_tasks(const Sm90Tasks& tasks, Sections sections, Visit&& visit) {
  const std::int64_t all_heads = tasks.heads * tasks.batch;
  const std::size_t rows = tasks.row_cost.size();
  for (std::int64_t first = 0, heads = 0; first < all_heads; first += heads) {
    heads = first + sections.last >= all_heads ? all_heads - first : sections.heads;
    for (std::size_t step = 0; step < rows; ++step)
      for (std::int64_t head = 0; head < heads; ++head) visit(tasks.row_cost[tasks.first_row_first ? step : rows - 1 - step]);
  }
}

/// The time of the busiest team when tasks are dealt to a grid in rounds.
double time_of_persistent(const Sm90Tasks& tasks, Sections sections, int grid, bool serpentine) {
  std::vector<double> busy(static_cast<std::size_t>(grid), 0.0);
  std::int64_t index = 0;
  walk_tasks(tasks, sections, [&](double cost) {
    const std::int64_t round = index / grid, place = index % grid;
    busy[static_cast<std::size_t>(serpentine && (round & 1) ? grid - 1 - place : place)] += cost;
    ++index;
  });
  return *std::max_element(busy.begin(), busy.end());
}

/// The same with dynamic assignment: the first idle team takes the next task.
double time_of_one_task_per_cta(const Sm90Tasks& tasks, Sections sections, int grid) {
  std::priority_queue<double, std::vector<double>, std::greater<>> done;
  for (int team = 0; team < grid; ++team) done.push(0);
  double last = 0;
  walk_tasks(tasks, sections, [&](double cost) {
    const double end = done.top() + cost;
    done.pop();
    done.push(end);
    last = std::max(last, end);
  });
  return last;
}

}  // namespace

device::Divisor divisor(std::int64_t value) {
  unsigned shift = 0;
  while (std::int64_t{1} << shift < value) ++shift;
  const auto multiplier =
      ((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - static_cast<std::uint64_t>(value))) / static_cast<std::uint64_t>(value) +
      1;
  return {static_cast<int>(value), static_cast<unsigned>(multiplier), shift};
}

std::vector<Sm90TileRange> sm90_row_tiles(const Sm90Mask& mask, std::int64_t rows_length, int rows_block, std::int64_t length, int block,
                                          bool transposed) {
  std::vector<Sm90TileRange> tiles;
  for (std::int64_t begin = 0; begin < rows_length; begin += rows_block) {
    const std::int64_t end = std::min(begin + rows_block, rows_length);
    const std::int64_t low = transposed ? -mask.band.high : mask.band.low, high = transposed ? -mask.band.low : mask.band.high;
    const std::int64_t first = std::max<std::int64_t>(0, begin + low), last = std::min(length, end + high);
    tiles.push_back({first / block, last > first ? base::divide_up(last, block) : first / block});
  }
  return tiles;
}

std::vector<double> sm90_row_cost(const Sm90Mask& mask, std::int64_t rows_length, int rows_block, std::int64_t length, int block,
                                  bool transposed) {
  std::vector<double> cost;
  for (const Sm90TileRange& tiles : sm90_row_tiles(mask, rows_length, rows_block, length, block, transposed))
    cost.push_back(sm90_task_ends + static_cast<double>(tiles.end - tiles.begin));
  return cost;
}

const char* to_string(Sm90Dealing dealing) {
  static constexpr const char* names[] = {"persistent", "persistent in order", "one task per CTA"};
  static_assert(std::size(names) == static_cast<std::size_t>(Sm90Dealing::one_task_per_cta) + 1);
  return names[static_cast<std::size_t>(dealing)];
}

std::string Sm90Schedule::text(const std::string& team) const {
  const bool differs = order.last_section > 0 && order.last_heads.value > order.section_heads.value;
  return base::join(order.tasks, " tasks over ", teams, " ", team, "s (", to_string(dealing), "), ", order.section_heads.value,
                    " heads at a time", differs ? base::join(", the last ", order.last_heads.value, " together") : "");
}

TileSchedule sm90_tile_schedule(const Sm90Schedule& schedule, std::int64_t length, std::int64_t row_tokens, std::int64_t packed_heads,
                                std::int64_t splits) {
  const device::TaskOrder& order = schedule.order;
  TileSchedule list;
  list.teams = schedule.at_a_time;
  const std::int64_t all_heads = order.tasks / order.rows;
  std::int64_t task = 0;
  for (std::int64_t section = 0, first = 0, end = 0; section <= order.last_section; ++section, first = end) {
    end = section == order.last_section ? all_heads : first + order.section_heads.value;
    for (std::int64_t step = 0; step < order.rows; ++step)
      for (std::int64_t flat = first; flat < end; ++flat, ++task) {
        const std::int64_t row = (order.first_row_first ? step : order.rows - 1 - step) / splits;
        const std::int64_t inside = flat % order.inside.value, outside = flat / order.inside.value;
        const std::int64_t round = task / schedule.teams, place = task % schedule.teams;
        list.rows.push_back({.task = task,
                             .team = schedule.dealing == Sm90Dealing::one_task_per_cta ? -1
                                     : (order.serpentine != 0 && round % 2 != 0)       ? schedule.teams - 1 - place
                                                                                       : place,
                             .batch = order.sequences_inside ? inside : outside,
                             .head = (order.sequences_inside ? outside : inside) * packed_heads,
                             .heads = packed_heads,
                             .begin = row * row_tokens,
                             .end = std::min(length, (row + 1) * row_tokens)});
      }
  }
  return list;
}

Sm90Schedule sm90_schedule(const Sm90Tasks& t, const Sm90ScheduleCosts& costs, const Sm90Teams& teams, bool in_order) {
  const auto [shortest, longest] = std::minmax_element(t.row_cost.begin(), t.row_cost.end());
  const bool even = *shortest == *longest;
  const double of_a_head = std::accumulate(t.row_cost.begin(), t.row_cost.end(), 0.0);
  const bool one_task_per_cta = !even && of_a_head >= costs.one_task_per_cta_from * static_cast<double>(t.row_cost.size());
  const Sm90Dealing dealing = in_order           ? Sm90Dealing::persistent_in_order
                              : one_task_per_cta ? Sm90Dealing::one_task_per_cta
                                                 : Sm90Dealing::persistent;
  const std::int64_t all_heads = t.heads * t.batch, rows = static_cast<std::int64_t>(t.row_cost.size()), tasks = all_heads * rows;
  const int grid = static_cast<int>(std::min<std::int64_t>(teams.count, tasks));
  const auto sections_of = [&](std::int64_t heads) { return Sections{heads, all_heads % heads == 0 ? heads : all_heads % heads}; };
  const auto schedule = [&](Sections sections, double time) {
    const device::TaskOrder order{static_cast<int>(tasks),        static_cast<int>(rows),
                                  t.first_row_first ? 1 : 0,      dealing == Sm90Dealing::persistent ? 1 : 0,
                                  t.sequences_inside ? 1 : 0,     divisor(t.sequences_inside ? t.batch : t.heads),
                                  divisor(sections.heads),        divisor(sections.last),
                                  divisor(sections.heads * rows), static_cast<int>((all_heads - sections.last) / sections.heads)};
    return Sm90Schedule{order, dealing, dealing == Sm90Dealing::one_task_per_cta ? static_cast<int>(tasks) : grid, grid, time};
  };
  constexpr int most_rows_in_turn = 4;  // of one head that run at a time
  const std::int64_t wanted = std::max<std::int64_t>(in_order ? teams.count / most_rows_in_turn : 1, t.sequences_inside ? t.batch : 1);
  const std::int64_t least = std::min(wanted, all_heads);
  constexpr std::int64_t most_tasks = 1 << 16;  // beyond this, imbalance is negligible: no simulation
  const double mean = of_a_head * static_cast<double>(all_heads) / grid;
  if (dealing == Sm90Dealing::one_task_per_cta && costs.one_task_per_cta_price > 0) {
    Sm90ScheduleCosts others = costs;
    others.one_task_per_cta_from = Sm90ScheduleCosts::never;
    if (const Sm90Schedule persistent = sm90_schedule(t, others, teams); persistent.time <= (1 + costs.one_task_per_cta_price) * mean)
      return persistent;
  }
  if (even)  // one head after the other: its keys and values stay in L2
    return schedule(sections_of(least), static_cast<double>(base::divide_up(tasks, grid)) * t.row_cost.front());

  const auto heads_within = [&](double share) {
    return std::max<std::int64_t>(
        1, static_cast<std::int64_t>(static_cast<double>(teams.l2_bytes) * share) / std::max<std::int64_t>(1, t.head_bytes));
  };
  if (dealing == Sm90Dealing::one_task_per_cta) {
    std::int64_t section = 1;  // a power of two: usual numbers of heads leave no small remainder
    while (section * 2 <= heads_within(costs.share_of_l2)) section *= 2;
    section = std::clamp(section, least, all_heads);
    Sections best = sections_of(section);
    constexpr std::int64_t most_played = 1 << 13;
    if (tasks > most_played) return schedule(best, mean);
    const double fitting = std::max(
        1.0, static_cast<double>(teams.l2_bytes) * costs.share_of_l2 / static_cast<double>(std::max<std::int64_t>(1, t.head_bytes)));
    const auto spilling = [&](std::int64_t heads, std::int64_t of) {
      const double doublings = std::log2(std::max(1.0, static_cast<double>(of) / fitting));
      return costs.one_task_per_cta_spilling_cost * doublings * static_cast<double>(heads) / static_cast<double>(all_heads);
    };
    double best_time = 0, least_price = 0;
    for (const std::int64_t heads : {section, 2 * section}) {
      const std::int64_t rest = sections_of(std::min(heads, all_heads)).last;
      for (std::int64_t more = 0; rest + more * heads <= all_heads; more = std::max<std::int64_t>(1, 2 * more)) {
        const Sections sections{std::min(heads, all_heads), rest + more * heads};
        const double time = time_of_one_task_per_cta(t, sections, grid);
        const double price = time * (1 + spilling(all_heads - sections.last, sections.heads) + spilling(sections.last, sections.last));
        if (least_price == 0 || price < least_price) least_price = price, best_time = time, best = sections;
      }
    }
    return schedule(best, best_time);
  }

  const std::int64_t fitting = heads_within(0.6);
  const auto heads_of_rounds = [&](std::int64_t rounds) { return base::divide_up(rounds * grid, rows); };
  double best_time = 0;
  std::int64_t best = least;
  for (std::int64_t section : {fitting, heads_of_rounds(1), heads_of_rounds(2), heads_of_rounds(3), heads_of_rounds(4), heads_of_rounds(6),
                               heads_of_rounds(8), all_heads}) {
    section = std::clamp(section, least, all_heads);
    const double doublings = std::log2(std::max(1.0, static_cast<double>(section) / static_cast<double>(fitting)));
    const double time =
        (1 + costs.spilling_cost * doublings) * (tasks <= most_tasks ? time_of_persistent(t, sections_of(section), grid, !in_order) : mean);
    if (best_time == 0 || time < best_time) {
      best_time = time;
      best = section;
    }
  }
  return schedule(sections_of(best), best_time);
}

Sm90RowParts sm90_schedule_row_parts(const std::vector<Sm90TileRange>& rows, const Sm90Tasks& of_rows, const Sm90ScheduleCosts& costs,
                                     const Sm90Teams& teams) {
  constexpr double start = 0.1;  // of a tile's time
  std::int64_t most = 1;
  for (const Sm90TileRange& row : rows) most = std::max(most, row.end - row.begin);
  const std::int64_t enough = 64 * teams.count;  // tasks: more even out anyway
  const std::int64_t whole = static_cast<std::int64_t>(rows.size()) * of_rows.heads * of_rows.batch;
  most = std::clamp<std::int64_t>(enough / whole, 1, std::min<std::int64_t>(most, 16));
  Sm90RowParts best{};
  for (int parts = 1; parts <= most; ++parts) {
    const auto before = [&](std::int64_t tile, int part) { return (tile + parts - 1 - part) / parts; };  // tiles of the part
    Sm90Tasks tasks = of_rows;
    for (const Sm90TileRange& row : rows)
      for (int part = 0; part < parts; ++part)
        tasks.row_cost.push_back(start + static_cast<double>(before(row.end, part) - before(row.begin, part)));
    const Sm90Schedule schedule = sm90_schedule(tasks, costs, teams);
    if (parts == 1 || schedule.time < best.schedule.time) best = {divisor(parts), schedule};
  }
  return best;
}

device::Divisor sm90_kv_splits(const problem::Problem& p, const Sm90ForwardConfig& config, int multiprocessors) {
  if (!config.is_decode()) return divisor(1);
  const auto rows = sm90_row_tiles(sm90_mask(p), p.seqlen_q, config.queries(), p.seqlen_kv, config.block_kv, false);
  std::int64_t tiles = 0;
  for (const Sm90TileRange& row : rows) tiles = std::max(tiles, row.end - row.begin);
  const std::int64_t tasks = p.batch * p.heads_q / config.packed_heads * static_cast<std::int64_t>(rows.size());
  // In the time of a tile while all multiprocessors read. Half of them take all that memory gives.
  constexpr double alone = 0.45, ends = 1, merging = 2.5;
  const auto time = [&](std::int64_t splits) {
    const double busy = std::min(1.0, static_cast<double>(tasks * splits) / multiprocessors);
    const double task = std::max(alone, busy) * static_cast<double>(base::divide_up(tiles, splits)) + ends;
    return static_cast<double>(base::divide_up(tasks * splits, multiprocessors)) * task + (splits > 1 ? merging : 0);
  };
  int best = 1;
  constexpr int most = 128;
  for (int splits = 2; splits <= std::min<std::int64_t>(most, tiles); ++splits)
    if (time(splits) < time(best)) best = splits;
  return divisor(best);
}

}  // namespace foveal::cuda
