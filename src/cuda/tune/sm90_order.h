#pragma once
// Schedules of the sm_90 kernels: which CTA does which task when, and of how many tasks a row of tiles consists. Pure functions, which play a
// schedule through on the host.
#include <string>
#include <vector>

#include "cuda/tune/sm90.h"

namespace foveal::cuda {

/// The tasks of a kernel: rows of tiles of all heads of all sequences.
struct Sm90Tasks {
  std::vector<double> row_cost;  ///< time of each row of one head, in tiles
  std::int64_t heads, batch;
  std::int64_t head_bytes;        ///< what the tasks of one head read, and add to, again and again
  bool first_row_first = false;   ///< a section begins with row 0 instead of the last row: with the longest
  bool sequences_inside = false;  ///< the sequences of one head follow each other instead of the heads of one sequence
};

/// Who does which task.
enum class Sm90Dealing {
  /// A persistent grid, dealt beforehand, to and fro, so that long and short tasks even out.
  rounds,
  /// The same in one direction: rows of one head wait for each other, so that few should run at a time, each dealt after the row before it.
  turns,
  /// A CTA for each task: the device starts one when another ends.
  one_each,
};
const char* to_string(Sm90Dealing dealing);

/// What was measured of a kernel on an H200 (docs/lab/gpu.md), by which its schedule is chosen.
struct Sm90Habits {
  static constexpr double never = 1e9;
  /// In rounds: of its time, for each doubling of a section beyond what fits in L2.
  double spilling_cost;
  /// Mean time of a task, in tiles, from which a CTA for each is quicker: shorter ones gain more by overlapping.
  double one_each_from = never;
  /// One each: that a section fills.
  double share_of_l2 = 0;
  /// One each: what it costs of the time (measured on an H100), so that rounds which leave less idle are quicker.
  double one_each_price = 0;
};
namespace habits {
constexpr Sm90Habits forward{.spilling_cost = 0.06};
/// Head dims from 65 to 128.
constexpr Sm90Habits forward_128{.spilling_cost = 0.06, .one_each_from = 40, .share_of_l2 = 2.0 / 3, .one_each_price = 0.025};
constexpr Sm90Habits forward_one_buffer{.spilling_cost = 0.06, .one_each_from = 12, .share_of_l2 = 2.0 / 3};  // of queries
constexpr Sm90Habits backward{.spilling_cost = 0.12, .one_each_from = 16, .share_of_l2 = 1.0 / 3};
constexpr Sm90Habits backward_wide{.spilling_cost = 0.12, .one_each_from = 8, .share_of_l2 = 1.0 / 3};
/// A task walks all query heads of a group, or ends early where its sequence does.
constexpr Sm90Habits backward_in_rounds{.spilling_cost = 0.12};
constexpr Sm90Habits collect{.spilling_cost = 0.12};
constexpr Sm90Habits pairs{.spilling_cost = 0.3};
}  // namespace habits

/// What tasks are done on: so many CTAs, or clusters, at a time.
struct Sm90Teams {
  int count;
  std::size_t l2_bytes;
};

struct Sm90Schedule {
  device::TaskOrder order;
  Sm90Dealing dealing;
  int teams;                 ///< of the grid
  int at_a_time;             ///< of these
  double time;               ///< of the busiest, in tiles
  std::string text() const;  ///< "512 tasks in rounds over 132 blocks, 4 heads at a time"
};
/// The same for explain(): which CTA or cluster takes which row of `row_tokens` tokens when. packed_heads: query heads of a task's head;
/// splits: tasks of a row.
TileSchedule sm90_tile_schedule(const Sm90Schedule& schedule, std::int64_t length, std::int64_t row_tokens, std::int64_t packed_heads,
                                std::int64_t splits);

/// Sections of heads are chosen so that tasks even out and what they read stays in L2: for a persistent grid a few LPT schedules are
/// simulated, and the shortest makespan wins; with a CTA for each task the load evens out by itself, so that bytes alone decide. in_turns: Sm90Dealing::turns, whatever else
/// were quicker.
Sm90Schedule sm90_schedule(const Sm90Tasks& tasks, const Sm90Habits& habits, const Sm90Teams& teams, bool in_turns = false);

/// Tiles that each row of tiles visits.
struct Sm90TileRange {
  std::int64_t begin, end;
};
std::vector<Sm90TileRange> sm90_row_tiles(const Sm90Mask& mask, std::int64_t rows_length, int rows_block, std::int64_t length, int block,
                                          bool transposed);

/// How many these are, plus what starting and ending a row costs.
std::vector<double> sm90_row_cost(const Sm90Mask& mask, std::int64_t rows_length, int rows_block, std::int64_t length, int block,
                                  bool transposed);

/// A schedule of tasks that take every parts-th tile of a row each, with as many parts as even out best. tasks: without costs of rows.
struct Sm90RowParts {
  device::Divisor parts;
  Sm90Schedule schedule;
};
Sm90RowParts sm90_schedule_row_parts(const std::vector<Sm90TileRange>& rows, const Sm90Tasks& tasks, const Sm90Habits& habits,
                                     const Sm90Teams& teams);

/// Split-KV: in how many splits the keys of a row of tiles are best read, so that all multiprocessors read; 1 unless there are few queries.
device::Divisor sm90_kv_splits(const problem::Problem& problem, const Sm90ForwardConfig& config, int multiprocessors);

}  // namespace foveal::cuda
