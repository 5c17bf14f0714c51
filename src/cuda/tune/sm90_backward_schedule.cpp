#include "cuda/tune/sm90_backward_schedule.h"

#include <algorithm>
#include <cmath>

#include "cuda/score/score_emit.h"

namespace foveal::cuda {
namespace {

/// Bytes of q, dout and the dq sums of this many query heads.
std::int64_t bytes_of_heads(const problem::Problem& p, std::int64_t heads) {
  return heads * p.seqlen_q * (2 * p.head_dim + 2 * p.head_dim_v + 4 * p.head_dim);
}

Sm90Tasks tasks_of(const HopperProblem& problem, const Sm90BackwardConfig& config) {
  const problem::Problem& p = problem.problem;
  const std::int64_t task_heads = p.group_size / config.group_tasks;
  const double adds =
      static_cast<double>(config.task_keys() * (p.head_dim + p.head_dim_v)) / static_cast<double>(config.block_q * p.head_dim);
  const double ends = schedule_rules::task_ends + (config.group_tasks > 1 ? schedule_rules::adding * adds : 0);
  std::vector<double> row_cost;
  for (const Sm90TileRange& tiles :
       sm90_row_tiles(problem.mask, p.seqlen_kv, config.task_keys(), p.seqlen_q, config.block_q, Sm90Walk::queries))
    row_cost.push_back(ends + static_cast<double>(task_heads * (tiles.end - tiles.begin)));
  return {.row_cost = std::move(row_cost),
          .heads = p.heads_kv * config.group_tasks,
          .batch = p.batch,
          .head_bytes = bytes_of_heads(p, task_heads),
          .first_row_first = true,
          .sequences_inside = sequences_share_pairs(p)};
}

Sm90ScheduleCosts costs_of(const problem::Problem& p, const Sm90BackwardConfig& config) {
  if ((p.group_size > 1 && config.group_tasks == 1) || p.ragged_kv()) return schedule_costs::backward_persistent;
  return config.cluster_size() > 1 ? schedule_costs::backward_wide : schedule_costs::backward;
}

Sm90Teams teams_of(const Sm90BackwardConfig& config, const driver::DeviceFacts& facts) {
  return {facts.multiprocessors / config.cluster_size(), facts.l2_bytes};
}

double predicted_time(const HopperProblem& problem, const Sm90BackwardConfig& config, const driver::DeviceFacts& facts) {
  const problem::Problem& p = problem.problem;
  const Sm90Tasks tasks = tasks_of(problem, config);
  Sm90ScheduleCosts costs = costs_of(p, config);
  costs.spilling_cost = 0;
  const double time = sm90_schedule(tasks, costs, teams_of(config, facts)).time;
  const auto [shortest, longest] = std::minmax_element(tasks.row_cost.begin(), tasks.row_cost.end());
  if (*shortest == *longest) return time;  // tasks of equal length stay together
  const double doublings = std::log2(static_cast<double>(bytes_of_heads(p, p.heads_q * p.batch)) / static_cast<double>(facts.l2_bytes)) - 1;
  const double drifting = std::clamp(schedule_rules::drifting * doublings, 0.0, schedule_rules::most_drifting);
  return time * (1 + drifting * std::log2(static_cast<double>(p.group_size / config.group_tasks)) / 2);
}

}  // namespace

bool sm90_splits_groups(const problem::Problem& p) {
  return p.group_size > 1 && !p.gathered && p.attention.determinism != Determinism::reproducible;
}

int sm90_group_tasks(const HopperProblem& problem, const Sm90BackwardConfig& config, const driver::DeviceFacts& facts) {
  const problem::Problem& p = problem.problem;
  int best = 1;
  double least = 0;
  for (int tasks = 1; tasks <= p.group_size; ++tasks) {
    if (p.group_size % tasks != 0 || (tasks > 1 && !sm90_splits_groups(p))) continue;
    Sm90BackwardConfig split = config;
    split.group_tasks = tasks;
    const double time = predicted_time(problem, split, facts);
    if (tasks == 1 || time < least) least = time, best = tasks;
  }
  return best;
}

Sm90Schedule sm90_backward_schedule(const HopperProblem& problem, const Sm90BackwardConfig& config, const driver::DeviceFacts& facts) {
  const problem::Problem& p = problem.problem;
  return sm90_schedule(tasks_of(problem, config), costs_of(p, config), teams_of(config, facts),
                       p.attention.determinism == Determinism::reproducible);
}

}  // namespace foveal::cuda
