#pragma once
// Configurations of the sm_90 kernels, their shared memory and registers, and the choice among them by tables: pure functions from a
// problem to printable values. Tile schedulers: sm90_order.h.
#include <optional>
#include <string>
#include <vector>

#include "cuda/device/layout/sm90.cuh"
#include "cuda/device/sm90_args.cuh"
#include "cuda/device/sm90_config.cuh"
#include "cuda/jit/source.h"
#include "cuda/score/planned_read.h"
#include "cuda/score/row_reads.h"
#include "cuda/tune/chosen.h"
#include "cuda/tune/hopper_problem.h"
#include "problem/problem.h"

namespace foveal::device {
std::string value_text(BackwardKernel kernel);  ///< as device text
}

namespace foveal::cuda {

struct ReadPlan;  // tune/read_plan.h

struct Sm90ForwardConfig : device::ForwardConfig {
  static constexpr const char* family = "sm90.forward";  ///< in files of tuned configurations

  bool paged = false;                          ///< the producer warp looks up pages or ranges, which takes more registers
  LineValues lines{};                          ///< evaluated by a warp of the producer warpgroup
  std::vector<PairTile> tiles{};               ///< reads that TMA loads as tiles
  std::vector<ReadTable> tables{};             ///< in shared memory
  std::vector<scoring::ValueId> row_values{};  ///< kept in registers for a task
  int offset_steps = 0;                        ///< k-steps of 16 extra columns by which tensor cores add offsets to scores
  bool offsets_first = false;                  ///< accumulators of scores start from the offsets
  bool raw_offsets = false;                    ///< long offsets are added to raw scores

  const char* kernel() const { return is_decode() ? "decode_sm90" : "forward_sm90"; }
  int consumer_registers() const { return ForwardConfig::consumer_registers(!lines.empty(), paged); }
  std::size_t shared_bytes(const problem::Problem& problem) const;
  std::string text() const;  ///< "128x160 stages 2"
};

struct Sm90BackwardConfig : device::BackwardConfig {
  static constexpr const char* family = "sm90.backward";

  int group_tasks = 0;               ///< that share the query heads of a kv head (sm90_group_tasks); 0: not chosen yet
  StagedReads staged{};              ///< trained reads whose terms the producer warpgroup sums
  LineValues lines{};                ///< evaluated there, too
  std::vector<PairTile> tiles{};     ///< reads that TMA loads as tiles
  std::vector<ReadBins> bins{};      ///< see sm90_bins
  std::vector<ReadTable> tables{};   ///< in shared memory
  std::vector<PlannedRead> reads{};  ///< trained reads

  template <class Self, class Fn>
  static void chosen(Self& self, Fn fn) {
    BackwardConfig::chosen(self, fn);
    fn("group_tasks", self.group_tasks);
  }

  int cluster_size() const { return shape().cluster_size; }  ///< CTAs that share a task
  int task_keys() const { return shape().task_keys(); }
  std::size_t shared_bytes(const problem::Problem& problem) const;
  std::string text() const;
};

/// Configuration of the pass that collects gradients of parameters after the backward kernel.
struct Sm90CollectConfig : device::BackwardConfig {
  StagedReads staged{};
  LineValues lines{};
  std::vector<ReadBins> bins{};
  std::vector<PlannedRead> reads{};  ///< trained reads

  std::size_t shared_bytes(const problem::Problem& problem) const;
};

/// Configuration of the pass that sums trained reads of a table for each query.
struct Sm90RowsConfig : device::RowsConfig {
  std::vector<RowRead> reads;

  std::size_t shared_bytes(const problem::Problem& problem) const;
};

/// Configuration of the pass that writes the gradient of a parameter with an element for each pair.
struct Sm90PairsConfig : device::PairsConfig {
  std::vector<PairTile> tiles{};  ///< reads that come as tiles

  unsigned shared_bytes(const problem::Problem& problem) const;
};

/// Divides `room` bytes of shared memory among the reads that scatter. A read gets bins for all of its elements, replicated while there is
/// room, or for a window of them around a tile, or none: it then adds to sums in L2.
std::vector<ReadBins> sm90_bins(const ReadPlan& plan, std::size_t room);

/// The two backward kernels. Above head dim 128 a cluster of two CTAs shares a task. Its registers and shared memory are full, so another
/// kernel sums terms of pairs (sm90_collect_config).
struct Sm90BackwardVariant {
  const char* stem;
  device::BackwardKernel kernel;  ///< whose block_kv a configuration has
  std::int64_t max_head_dim_v;    ///< beside its head dims
  bool is_wide;                   ///< has no registers for terms of pairs
  int block_kv() const { return device::backward_family(kernel).block_kv; }
};
/// The one for the problem's head dims.
const Sm90BackwardVariant& sm90_backward_variant(const problem::Problem& problem);
/// The kernel that sums gradients of parameters after a backward kernel without registers for per-pair terms. nullopt if it does not fit
/// shared memory.
std::optional<Sm90CollectConfig> sm90_collect_config(const problem::Problem& problem, const ReadPlan& plan);
/// The kernel that sums reads of tables per query: as many of the reads as fit shared memory, the smallest first. nullopt if none fits.
std::optional<Sm90RowsConfig> sm90_rows_config(const problem::Problem& problem, std::vector<RowRead> reads);
/// The kernel that writes gradients with an element for each pair.
Sm90PairsConfig sm90_pairs_config(const problem::Problem& problem);
/// Reads of one element per pair that kernels may load as tiles. collects: not those needed after the
/// probabilities, when the tiles' stage has been released.
std::vector<PairTile> sm90_pair_tiles(const HopperProblem& problem, bool collects = false);
/// The line values of the score, where the kernel has warps to evaluate them.
LineValues sm90_line_values(const HopperProblem& problem, const Sm90BackwardConfig& config = {});

/// The configurations of all rows of a table (sm90_forward_choice.cpp, sm90_backward_choice.cpp) that apply and fit, the best
/// for this problem first; empty when none fits.
std::vector<Sm90ForwardConfig> sm90_forward_candidates(const HopperProblem& problem);
std::vector<Sm90BackwardConfig> sm90_backward_candidates(const HopperProblem& problem, const ReadPlan& plan);

/// The tuned configuration of this device, or else the first candidate. nullopt if no row fits.
std::optional<Chosen<Sm90ForwardConfig>> sm90_forward_choice(const HopperProblem& problem, const std::string& device);
std::optional<Chosen<Sm90BackwardConfig>> sm90_backward_choice(const HopperProblem& problem, const ReadPlan& plan,
                                                               const std::string& device);

/// Why a completed configuration cannot run a problem; nullopt if it can.
std::optional<std::string> sm90_illegal(const HopperProblem& problem, const Sm90ForwardConfig& config);
std::optional<std::string> sm90_illegal(const HopperProblem& problem, const ReadPlan& plan, const Sm90BackwardConfig& config);

/// Every legal configuration, the candidates first: the search space of `foveal tune`.
std::vector<Sm90ForwardConfig> sm90_forward_space(const HopperProblem& problem);
std::vector<Sm90BackwardConfig> sm90_backward_space(const HopperProblem& problem, const ReadPlan& plan);

/// Those of these tables (find_read_tables) that fit `room` bytes of shared memory, with as many copies as do.
std::vector<ReadTable> sm90_fitting_tables(const std::vector<ReadTable>& found, std::size_t room);

constexpr std::size_t sm90_shared_limit = 232448;  ///< bytes of a CTA
inline bool fits(const problem::Problem& problem, const auto& config) { return config.shared_bytes(problem) <= sm90_shared_limit; }
constexpr std::int64_t sm90_max_head_dim = 256;

}  // namespace foveal::cuda
