#pragma once
// Tile schedulers of the sm_90 kernels: which CTA runs which task when, and into how many tasks a row of tiles is split. Pure
// functions that simulate a schedule on the host.
#include <string>
#include <vector>

#include "cuda/tune/sm90.h"

namespace foveal::cuda {

/// The tasks of a kernel: rows of tiles of all heads of all sequences.
struct Sm90Tasks {
  std::vector<double> row_cost;  ///< time of each row of one head, in tiles
  std::int64_t heads, batch;
  std::int64_t head_bytes;        ///< working set of the tasks of one head in L2
  bool first_row_first = false;   ///< a section starts with row 0, its longest; otherwise with the last row
  bool sequences_inside = false;  ///< sequences vary fastest, so that the tasks of one head follow each other; otherwise heads do
};

/// How tasks are assigned to CTAs.
enum class Sm90Dealing {
  /// A persistent grid with a static assignment, in alternating direction so that long and short tasks even out.
  persistent,
  /// The same in one direction, for rows of a head that wait for each other: each is assigned
  /// after the one it waits for, and few run at a time.
  persistent_in_order,
  /// One CTA per task: the hardware scheduler balances the load.
  one_task_per_cta,
};
const char* to_string(Sm90Dealing dealing);

/// Measured properties of a kernel on an H200 (docs/lab/gpu.md) by which its scheduler is chosen.
struct Sm90ScheduleCosts {
  static constexpr double never = 1e9;
  /// Persistent: fraction of the time lost with each doubling of a section beyond L2.
  double spilling_cost;
  /// Mean tiles of a task from which one CTA per task is faster: shorter tasks gain more from the overlap of a persistent kernel.
  double one_task_per_cta_from = never;
  /// One task per CTA: how much of L2 a section may fill.
  double share_of_l2 = 0;
  /// One task per CTA: fraction of the time it costs (measured on an H100); a persistent grid that idles less than this is faster.
  double one_task_per_cta_price = 0;
  /// One task per CTA: fraction of a section's time lost with each doubling beyond this share.
  static constexpr double one_task_per_cta_spilling_cost = 0.04;
};
namespace schedule_costs {
constexpr Sm90ScheduleCosts forward{.spilling_cost = 0.06};
/// Head dims from 65 to 128.
constexpr Sm90ScheduleCosts forward_128{
    .spilling_cost = 0.06, .one_task_per_cta_from = 40, .share_of_l2 = 2.0 / 3, .one_task_per_cta_price = 0.025};
constexpr Sm90ScheduleCosts forward_one_buffer{.spilling_cost = 0.06, .one_task_per_cta_from = 12, .share_of_l2 = 2.0 / 3};  // of queries
constexpr Sm90ScheduleCosts backward{.spilling_cost = 0.12, .one_task_per_cta_from = 16, .share_of_l2 = 1.0 / 3};
constexpr Sm90ScheduleCosts backward_wide{.spilling_cost = 0.12, .one_task_per_cta_from = 8, .share_of_l2 = 1.0 / 3};
/// A task walks all query heads of a group, or ends early where its sequence does.
constexpr Sm90ScheduleCosts backward_persistent{.spilling_cost = 0.12};
constexpr Sm90ScheduleCosts collect{.spilling_cost = 0.12};
constexpr Sm90ScheduleCosts pairs{.spilling_cost = 0.3};
}  // namespace schedule_costs

/// What else schedules are simulated with, for all kernels. Times are in those of a tile. "Measured": on an H200
/// (docs/lab/gpu-experiments.md); of the others no measurement is recorded.
namespace schedule_rules {
constexpr double task_ends = 0.7;  ///< prologue and epilogue of a task
constexpr double part_ends = 0.1;  ///< of a part of a row, whose next one is loaded meanwhile
/// Time to add a task's dk and dv to sums in memory, where tasks share a group, in multiples of the elements that a tile adds to dq.
/// Measured.
constexpr double adding = 0.6;
/// Fraction of the time lost where tasks of four query heads differ in length and drift apart: per doubling of the bytes of all heads
/// beyond twice L2, and its limit. Measured.
constexpr double drifting = 0.06, most_drifting = 0.07;
/// Split-KV, in units of the time of a tile while all multiprocessors read: the time of a tile while few read (half of the multiprocessors
/// saturate memory), the prologue and epilogue of a task, and the merge. The splits chosen were within 2 % of the best measured.
constexpr double read_alone = 0.45, split_ends = 1, merging = 2.5;

constexpr double persistent_share_of_l2 = 0.6;  ///< that a section of a persistent grid may fill before it loses time
constexpr int most_rows_in_turn = 4;            ///< rows of a head that run at a time where they wait for each other
constexpr int most_row_parts = 16, most_kv_splits = 128;
constexpr int enough_tasks_of_team = 64;  ///< with more tasks per team, rows need no parts to balance
/// With more tasks than this imbalance is negligible and no schedule is simulated: for tasks dealt in rounds, and for dynamic assignment,
/// whose simulation takes longer.
constexpr std::int64_t most_dealt = 1 << 16, most_simulated = 1 << 13;
}  // namespace schedule_rules

/// What tasks run on: CTAs or clusters that are resident together.
struct Sm90Teams {
  int count;
  std::size_t l2_bytes;
};

struct Sm90Schedule {
  device::TaskOrder order;
  Sm90Dealing dealing;
  int teams;      ///< of the grid
  int at_a_time;  ///< of these
  double time;    ///< of the busiest, in tiles
  /// "512 tasks over 132 CTAs (persistent), 4 heads at a time"; team: "CTA" or "cluster".
  std::string text(const std::string& team = "CTA") const;
};
/// The same for explain(): which CTA or cluster takes which row of `row_tokens` tokens when. packed_heads: query heads of a task's head;
/// splits: tasks of a row.
TileSchedule sm90_tile_schedule(const Sm90Schedule& schedule, std::int64_t length, std::int64_t row_tokens, std::int64_t packed_heads,
                                std::int64_t splits);

/// Chooses sections of heads whose working set stays in L2 and whose tasks balance: simulates some LPT schedules and takes the one with the
/// shortest makespan. With one CTA per task the hardware balances the load, except at the end: the last section may be larger, so that its
/// longest tasks do not start too late. in_order: forces Sm90Dealing::persistent_in_order.
Sm90Schedule sm90_schedule(const Sm90Tasks& tasks, const Sm90ScheduleCosts& costs, const Sm90Teams& teams, bool in_order = false);

/// What a task loops over. It owns a row of tiles: of queries if it walks keys, of keys if it walks queries.
enum class Sm90Walk { keys, queries };

/// Tiles that each row of tiles visits.
struct Sm90TileRange {
  std::int64_t begin, end;
};
std::vector<Sm90TileRange> sm90_row_tiles(const Sm90Mask& mask, std::int64_t rows_length, int rows_block, std::int64_t length, int block,
                                          Sm90Walk walk);

device::Divisor divisor(std::int64_t value);

/// The number of these tiles plus the cost of a row's prologue and epilogue.
std::vector<double> sm90_row_cost(const Sm90Mask& mask, std::int64_t rows_length, int rows_block, std::int64_t length, int block,
                                  Sm90Walk walk);

/// Splits rows into tasks of every parts-th tile; picks the number of parts with the shortest makespan. tasks: without costs of rows.
struct Sm90RowParts {
  device::Divisor parts;
  Sm90Schedule schedule;
};
Sm90RowParts sm90_schedule_row_parts(const std::vector<Sm90TileRange>& rows, const Sm90Tasks& tasks, const Sm90ScheduleCosts& costs,
                                     const Sm90Teams& teams);

/// Split-KV: into how many tasks the keys of a row of tiles are split so that all multiprocessors are busy; 1 unless there are few queries.
device::Divisor sm90_kv_splits(const HopperProblem& problem, const Sm90ForwardConfig& config, int multiprocessors);

}  // namespace foveal::cuda
