#include "cpu/backward_tasks.h"

#include <algorithm>
#include <tuple>

namespace foveal::cpu {

BackwardTasks::BackwardTasks(const BackwardShape& shape, const Work& work)
    : query_tasks(work.memory()), units(work.memory()), key_tasks(work.memory()) {
  const bool by_share = shape.fused() || !shape.grads->empty();
  if (by_share || shape.wants_dq) {
    query_tasks = by_share ? work.shares(shape.shares) : work.tasks(shape.tiles_per_step);
    if (!by_share && shape.strategy == BackwardStrategy::two_scan)
      std::sort(query_tasks.begin(), query_tasks.end(), [](const Task& x, const Task& y) { return x.tile_begin < y.tile_begin; });
    make_units(shape, work, by_share);
  }
  if (!shape.fused() && shape.wants_keys) make_key_tasks(shape, work);
}

std::size_t BackwardTasks::bytes(const WorkPlanner& planner, std::int64_t shares) {
  const auto tasks = static_cast<std::size_t>(std::max(planner.max_tiles(), planner.max_groups() * shares));
  const auto key_tasks = static_cast<std::size_t>(planner.max_blocks() + planner.max_groups());
  return tasks * (sizeof(Task) + sizeof(QueryUnit) + sizeof(std::pair<std::int64_t, Task>)) +
         key_tasks * (sizeof(KeyTask) + sizeof(std::int64_t)) + 256;
}

void BackwardTasks::make_units(const BackwardShape& shape, const Work& work, bool by_share) {
  units.reserve(query_tasks.size());
  if (shape.grads->empty()) {
    for (std::size_t t = 0; t < query_tasks.size(); ++t) units.push_back({t, t + 1, 0, query_tasks[t].cost});
  } else {
    const auto partition = [&](std::size_t t) {
      const TileGroup& group = work.group(query_tasks[t]);
      return shape.grads->partition(work.sequence(group).symbol, group.kv_head, query_tasks[t].share);
    };
    std::pmr::vector<std::pair<std::int64_t, Task>> order(work.memory());
    order.reserve(query_tasks.size());
    for (std::size_t t = 0; t < query_tasks.size(); ++t) order.emplace_back(partition(t), query_tasks[t]);
    std::sort(order.begin(), order.end(), [](const auto& x, const auto& y) {
      return std::tie(x.first, x.second.group, x.second.share) < std::tie(y.first, y.second.group, y.second.share);
    });
    for (std::size_t t = 0; t < order.size(); ++t) {
      query_tasks[t] = order[t].second;
      if (units.empty() || units.back().partition != order[t].first) units.push_back({t, t, order[t].first, 0});
      units.back().end = t + 1;
      units.back().cost += order[t].second.cost;
    }
  }
  if (by_share && shape.strategy != BackwardStrategy::two_scan)
    std::sort(units.begin(), units.end(),
              [](const QueryUnit& x, const QueryUnit& y) { return std::tie(y.cost, x.begin) < std::tie(x.cost, y.begin); });
}

void BackwardTasks::make_key_tasks(const BackwardShape& shape, const Work& work) {
  const auto blocks_of = [&](const TileGroup& group) { return static_cast<std::int32_t>(work.sequence(group).blocks(shape.block_kv)); };
  std::int32_t count = 0, most = 0;
  for (const TileGroup& group : work.groups) {
    count += base::divide_up(blocks_of(group), blocks_per_key_task);
    most = std::max(most, blocks_of(group));
  }
  key_tasks.reserve(static_cast<std::size_t>(count));
  std::pmr::vector<std::int64_t> starts(work.memory());  // tiles that begin minus tiles that end at a block
  starts.reserve(static_cast<std::size_t>(most) + 1);
  for (std::size_t g = 0; g < work.groups.size(); ++g) {
    const TileGroup& group = work.groups[g];
    const std::int32_t blocks = blocks_of(group);
    starts.assign(static_cast<std::size_t>(blocks) + 1, 0);
    for (std::int64_t t = group.tile_begin; t < group.tile_end; ++t) {
      const LaneTile& tile = work.tile(t);
      for (std::int64_t r = tile.run_begin; r < tile.run_end; ++r) {
        ++starts[static_cast<std::size_t>(work.runs[static_cast<std::size_t>(r)].begin)];
        --starts[static_cast<std::size_t>(work.runs[static_cast<std::size_t>(r)].end)];
      }
    }
    std::int64_t tiles = 0;
    for (std::int32_t begin = 0; begin < blocks; begin += blocks_per_key_task) {
      KeyTask task{static_cast<std::int64_t>(g), begin, std::min(blocks, begin + blocks_per_key_task), 0};
      for (std::int32_t block = begin; block < task.block_end; ++block) task.cost += tiles += starts[static_cast<std::size_t>(block)];
      key_tasks.push_back(task);
    }
  }
  if (shape.strategy == BackwardStrategy::split)
    std::sort(key_tasks.begin(), key_tasks.end(), [](const KeyTask& x, const KeyTask& y) {
      return std::tie(y.cost, x.group, x.block_begin) < std::tie(x.cost, y.group, y.block_begin);
    });
}

void describe_tasks(const Work& work, const BackwardTasks& tasks, TileSchedule& schedule) {
  for (std::size_t u = 0; u < tasks.units.size(); ++u)
    for (std::size_t t = tasks.units[u].begin; t < tasks.units[u].end; ++t)
      add_rows(work, tasks.query_tasks[t], static_cast<std::int64_t>(u), schedule);
}

}  // namespace foveal::cpu
