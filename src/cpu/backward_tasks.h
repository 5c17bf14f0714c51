#pragma once
// The tasks of a backward pass by blocks. The lists depend on the shape alone.
#include <cstdint>
#include <utility>

#include "cpu/describe.h"
#include "cpu/param_grad_plan.h"
#include "cpu/work.h"

namespace foveal::cpu {

constexpr int blocks_per_key_task = 4;  ///< KV blocks that share the packing of a tile

/// Blocks of keys of one group, against all its tiles.
struct KeyTask {
  std::int64_t group;
  std::int32_t block_begin, block_end;
  std::int64_t cost;
};

/// Query tasks [begin, end) that run in sequence.
struct QueryUnit {
  std::size_t begin, end;
  std::int64_t partition, cost;
};

/// Parameters of the lists.
struct BackwardShape {
  BackwardStrategy strategy;
  std::int64_t shares;        ///< of the tiles of a kv head
  bool wants_dq, wants_keys;  ///< keys: dk or dv
  int tiles_per_step, block_kv;
  const ParamGradPlan* grads;

  bool fused() const { return strategy == BackwardStrategy::fused; }
};

struct BackwardTasks {
  BackwardTasks(const BackwardShape& shape, const Work& work);

  /// Upper bound of the lists.
  static std::size_t bytes(const WorkPlanner& planner, std::int64_t shares);

  Tasks query_tasks;
  std::pmr::vector<QueryUnit> units;
  std::pmr::vector<KeyTask> key_tasks;

 private:
  void make_units(const BackwardShape& shape, const Work& work, bool by_share);
  void make_key_tasks(const BackwardShape& shape, const Work& work);
};

void describe_tasks(const Work& work, const BackwardTasks& tasks, TileSchedule& schedule);

}  // namespace foveal::cpu
