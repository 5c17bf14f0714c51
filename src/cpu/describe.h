#pragma once
// explain() of a CPU plan.
#include "cpu/setup.h"
#include "plan/flops.h"

namespace foveal::cpu {

/// Adds the tiles of the next task.
inline void add_rows(const Work& work, const Task& task, std::int64_t number, TileSchedule& schedule) {
  const Sequence& sequence = work.sequences[static_cast<std::size_t>(work.groups[static_cast<std::size_t>(task.group)].sequence)];
  for (std::int64_t t = task.tile_begin; t < task.tile_end; ++t) {
    const LaneTile& tile = work.tiles[static_cast<std::size_t>(t)];
    schedule.rows.push_back({.task = number,
                             .team = -1,
                             .batch = sequence.index,
                             .head = tile.head,
                             .heads = tile.heads,
                             .begin = tile.q,
                             .end = tile.q + tile.queries});
  }
}

/// A list of tasks that threads take dynamically, in order.
inline void describe_tasks(const Work& work, const Tasks& tasks, TileSchedule& schedule) {
  for (std::size_t t = 0; t < tasks.size(); ++t) add_rows(work, tasks[t], static_cast<std::int64_t>(t), schedule);
}

/// Tiles, flops and threads. `products`: matmul flops of the pass relative to the forward's two products.
template <class Real>
void describe_work(const Setup<Real>& setup, Explanation& explanation, double products) {
  const problem::Problem& p = setup.problem;
  const Geometry geometry = setup.geometry;
  explanation.deterministic = true;
  const double nominal = planning::dense_flops(p);
  explanation.flops = explanation.flops_nominal = nominal;
  explanation.schedule = {.block_q = geometry.lanes,
                          .block_kv = geometry.block_kv,
                          .rows_are_keys = false,
                          .team = "thread",
                          .teams = setup.workers(),
                          .rows = {}};
  if (setup.work && !setup.work->tiles.empty()) explanation.schedule.block_q = setup.work->tiles.front().queries;
  if (setup.work) {
    explanation.tiles_full = setup.work->full;
    explanation.tiles_partial = setup.work->partial;
    explanation.tiles_empty = setup.work->empty;
    const double visited = static_cast<double>(setup.work->full + setup.work->partial);
    explanation.flops = visited * geometry.lanes * geometry.block_kv * 2.0 * static_cast<double>(p.head_dim + p.head_dim_v) * products;
    const double all = visited + static_cast<double>(setup.work->empty);
    if (all > 0)
      explanation.flops_nominal = nominal * (static_cast<double>(setup.work->full) + 0.5 * static_cast<double>(setup.work->partial)) / all;
  }
  const auto detail = [&](const char* name, const std::string& value) { explanation.details.emplace_back(name, value); };
  detail("target", setup.target);
  detail("arithmetic", std::string(setup.ops.name));
  detail("tile", std::to_string(geometry.lanes) + " lanes (head, query) x " + std::to_string(geometry.block_kv) + " keys");
  detail("threads", std::to_string(setup.workers()));
  if (p.paged)
    detail("pages", geometry.block_kv <= p.page_size() && p.page_size() % geometry.block_kv == 0
                        ? "blocks of keys are read where they lie"
                        : "blocks of keys on several pages are put together");
  detail("block mask", setup.work ? "at planning" : "at run: it depends on the data");
}

}  // namespace foveal::cpu
