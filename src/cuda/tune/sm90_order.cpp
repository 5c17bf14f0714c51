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
                                          Sm90Walk walk) {
  std::vector<Sm90TileRange> tiles;
  for (std::int64_t begin = 0; begin < rows_length; begin += rows_block) {
    const std::int64_t end = std::min(begin + rows_block, rows_length);
    const std::int64_t low = walk == Sm90Walk::queries ? -mask.band.high : mask.band.low,
                       high = walk == Sm90Walk::queries ? -mask.band.low : mask.band.high;
    const std::int64_t first = std::max<std::int64_t>(0, begin + low), last = std::min(length, end + high);
    tiles.push_back({first / block, last > first ? base::divide_up(last, block) : first / block});
  }
  return tiles;
}

std::vector<double> sm90_row_cost(const Sm90Mask& mask, std::int64_t rows_length, int rows_block, std::int64_t length, int block,
                                  Sm90Walk walk) {
  std::vector<double> cost;
  for (const Sm90TileRange& tiles : sm90_row_tiles(mask, rows_length, rows_block, length, block, walk))
    cost.push_back(schedule_rules::task_ends + static_cast<double>(tiles.end - tiles.begin));
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

namespace {

/// The schedules of some tasks, one function for each way to deal them.
class Schedules {
 public:
  Schedules(const Sm90Tasks& tasks, const Sm90ScheduleCosts& costs, const Sm90Teams& teams, bool in_order)
      : t_(tasks),
        costs_(costs),
        teams_(teams),
        in_order_(in_order),
        all_heads_(t_.heads * t_.batch),
        rows_(static_cast<std::int64_t>(t_.row_cost.size())),
        tasks_(all_heads_ * rows_),
        grid_(static_cast<int>(std::min<std::int64_t>(teams.count, tasks_))),
        of_a_head_(std::accumulate(t_.row_cost.begin(), t_.row_cost.end(), 0.0)) {
    const std::int64_t wanted =
        std::max<std::int64_t>(in_order ? teams.count / schedule_rules::most_rows_in_turn : 1, t_.sequences_inside ? t_.batch : 1);
    least_ = std::min(wanted, all_heads_);
  }

  bool are_even() const {
    const auto [shortest, longest] = std::minmax_element(t_.row_cost.begin(), t_.row_cost.end());
    return *shortest == *longest;
  }
  /// On average.
  bool tasks_take(double tiles) const { return of_a_head_ >= tiles * static_cast<double>(rows_); }
  double mean_of_team() const { return of_a_head_ * static_cast<double>(all_heads_) / grid_; }

  /// One head after the other: its keys and values stay in L2.
  Sm90Schedule even() const {
    return schedule(rounds(), sections_of(least_), static_cast<double>(base::divide_up(tasks_, grid_)) * t_.row_cost.front());
  }

  Sm90Schedule persistent() const {
    const std::int64_t fitting = heads_within(schedule_rules::persistent_share_of_l2);
    const auto heads_of_rounds = [&](std::int64_t rounds) { return base::divide_up(rounds * grid_, rows_); };
    double best_time = 0;
    std::int64_t best = least_;
    for (std::int64_t section : {fitting, heads_of_rounds(1), heads_of_rounds(2), heads_of_rounds(3), heads_of_rounds(4),
                                 heads_of_rounds(6), heads_of_rounds(8), all_heads_}) {
      section = std::clamp(section, least_, all_heads_);
      const double doublings = std::log2(std::max(1.0, static_cast<double>(section) / static_cast<double>(fitting)));
      const bool simulated = tasks_ <= schedule_rules::most_dealt;
      const double time = (1 + costs_.spilling_cost * doublings) *
                          (simulated ? time_of_persistent(t_, sections_of(section), grid_, !in_order_) : mean_of_team());
      if (best_time == 0 || time < best_time) best_time = time, best = section;
    }
    return schedule(rounds(), sections_of(best), best_time);
  }

  Sm90Schedule one_task_per_cta() const {
    std::int64_t section = 1;  // a power of two: usual numbers of heads leave no small remainder
    while (section * 2 <= heads_within(costs_.share_of_l2)) section *= 2;
    section = std::clamp(section, least_, all_heads_);
    Sections best = sections_of(section);
    if (tasks_ > schedule_rules::most_simulated) return schedule(Sm90Dealing::one_task_per_cta, best, mean_of_team());
    double best_time = 0, least_price = 0;
    for (const std::int64_t heads : {section, 2 * section}) {
      const std::int64_t rest = sections_of(std::min(heads, all_heads_)).last;
      for (std::int64_t more = 0; rest + more * heads <= all_heads_; more = std::max<std::int64_t>(1, 2 * more)) {
        const Sections sections{std::min(heads, all_heads_), rest + more * heads};
        const double time = time_of_one_task_per_cta(t_, sections, grid_);
        const double price = time * (1 + spilling(all_heads_ - sections.last, sections.heads) + spilling(sections.last, sections.last));
        if (least_price == 0 || price < least_price) least_price = price, best_time = time, best = sections;
      }
    }
    return schedule(Sm90Dealing::one_task_per_cta, best, best_time);
  }

 private:
  Sm90Dealing rounds() const { return in_order_ ? Sm90Dealing::persistent_in_order : Sm90Dealing::persistent; }
  Sections sections_of(std::int64_t heads) const { return {heads, all_heads_ % heads == 0 ? heads : all_heads_ % heads}; }
  std::int64_t heads_within(double share) const {
    return std::max<std::int64_t>(
        1, static_cast<std::int64_t>(static_cast<double>(teams_.l2_bytes) * share) / std::max<std::int64_t>(1, t_.head_bytes));
  }
  /// The price of `heads` heads in sections of `section`, in parts of the time of all.
  double spilling(std::int64_t heads, std::int64_t section) const {
    const double bytes = static_cast<double>(teams_.l2_bytes) * costs_.share_of_l2;
    const double fitting = std::max(1.0, bytes / static_cast<double>(std::max<std::int64_t>(1, t_.head_bytes)));
    const double doublings = std::log2(std::max(1.0, static_cast<double>(section) / fitting));
    return Sm90ScheduleCosts::one_task_per_cta_spilling_cost * doublings * static_cast<double>(heads) / static_cast<double>(all_heads_);
  }

  Sm90Schedule schedule(Sm90Dealing dealing, Sections sections, double time) const {
    const device::TaskOrder order{.tasks = static_cast<int>(tasks_),
                                  .rows = static_cast<int>(rows_),
                                  .first_row_first = t_.first_row_first,
                                  .serpentine = dealing == Sm90Dealing::persistent,
                                  .sequences_inside = t_.sequences_inside,
                                  .inside = divisor(t_.sequences_inside ? t_.batch : t_.heads),
                                  .section_heads = divisor(sections.heads),
                                  .last_heads = divisor(sections.last),
                                  .section_tasks = divisor(sections.heads * rows_),
                                  .last_section = static_cast<int>((all_heads_ - sections.last) / sections.heads)};
    return {.order = order,
            .dealing = dealing,
            .teams = dealing == Sm90Dealing::one_task_per_cta ? static_cast<int>(tasks_) : grid_,
            .at_a_time = grid_,
            .time = time};
  }

  const Sm90Tasks& t_;
  const Sm90ScheduleCosts& costs_;
  const Sm90Teams& teams_;
  bool in_order_;
  std::int64_t all_heads_, rows_, tasks_, least_ = 0;  ///< least_: heads of a section
  int grid_;
  double of_a_head_;
};

}  // namespace

Sm90Schedule sm90_schedule(const Sm90Tasks& tasks, const Sm90ScheduleCosts& costs, const Sm90Teams& teams, bool in_order) {
  const Schedules schedules(tasks, costs, teams, in_order);
  if (schedules.are_even()) return schedules.even();
  if (in_order || !schedules.tasks_take(costs.one_task_per_cta_from)) return schedules.persistent();
  if (costs.one_task_per_cta_price > 0)
    if (auto persistent = schedules.persistent(); persistent.time <= (1 + costs.one_task_per_cta_price) * schedules.mean_of_team())
      return persistent;
  return schedules.one_task_per_cta();
}

Sm90RowParts sm90_schedule_row_parts(const std::vector<Sm90TileRange>& rows, const Sm90Tasks& of_rows, const Sm90ScheduleCosts& costs,
                                     const Sm90Teams& teams) {
  std::int64_t most = 1;
  for (const Sm90TileRange& row : rows) most = std::max(most, row.end - row.begin);
  const std::int64_t enough = schedule_rules::enough_tasks_of_team * teams.count;
  const std::int64_t whole = static_cast<std::int64_t>(rows.size()) * of_rows.heads * of_rows.batch;
  most = std::clamp<std::int64_t>(enough / whole, 1, std::min<std::int64_t>(most, schedule_rules::most_row_parts));
  Sm90RowParts best{};
  for (int parts = 1; parts <= most; ++parts) {
    const auto before = [&](std::int64_t tile, int part) { return (tile + parts - 1 - part) / parts; };  // tiles of the part
    Sm90Tasks tasks = of_rows;
    for (const Sm90TileRange& row : rows)
      for (int part = 0; part < parts; ++part)
        tasks.row_cost.push_back(schedule_rules::part_ends + static_cast<double>(before(row.end, part) - before(row.begin, part)));
    const Sm90Schedule schedule = sm90_schedule(tasks, costs, teams);
    if (parts == 1 || schedule.time < best.schedule.time) best = {divisor(parts), schedule};
  }
  return best;
}

device::Divisor sm90_kv_splits(const HopperProblem& problem, const Sm90ForwardConfig& config, int multiprocessors) {
  if (!config.is_decode()) return divisor(1);
  const problem::Problem& p = problem.problem;
  const auto rows = sm90_row_tiles(problem.mask, p.seqlen_q, config.queries(), p.seqlen_kv, config.block_kv, Sm90Walk::keys);
  std::int64_t tiles = 0;
  for (const Sm90TileRange& row : rows) tiles = std::max(tiles, row.end - row.begin);
  const std::int64_t tasks = p.batch * p.heads_q / config.packed_heads * static_cast<std::int64_t>(rows.size());
  const auto time = [&](std::int64_t splits) {
    const double busy = std::min(1.0, static_cast<double>(tasks * splits) / multiprocessors);
    const double task =
        std::max(schedule_rules::read_alone, busy) * static_cast<double>(base::divide_up(tiles, splits)) + schedule_rules::split_ends;
    return static_cast<double>(base::divide_up(tasks * splits, multiprocessors)) * task + (splits > 1 ? schedule_rules::merging : 0);
  };
  int best = 1;
  for (int splits = 2; splits <= std::min<std::int64_t>(schedule_rules::most_kv_splits, tiles); ++splits)
    if (time(splits) < time(best)) best = splits;
  return divisor(best);
}

}  // namespace foveal::cuda
