// Which configuration a Hopper backward kernel runs in: facts of the problem, rows that were measured, and what is legal.
#include "cuda/tune/choice.h"
#include "cuda/tune/read_plan.h"
#include "cuda/tune/sm90_backward_schedule.h"

namespace foveal::cuda {
namespace {

struct BackwardFacts {
  const HopperProblem& problem;
  const ReadPlan& plan;
  const problem::Problem& p = problem.problem;
  const Sm90BackwardVariant& variant = sm90_backward_variant(p);
  std::int64_t dim = std::max(p.head_dim, p.head_dim_v);
  bool bare = !problem.mask.is_list() && p.attention.dropout_p == 0 && !p.ragged_kv();
  bool collects = plan.hopper;
  StagedReads staged = collects && !variant.is_wide ? plan.staged() : StagedReads{};
  LineValues lines = sm90_line_values(problem, {{.kernel = variant.kernel, .block_kv = variant.block_kv()}, 0, staged});
  bool helpers = staged.any() || !lines.empty();  ///< the producer warpgroup's other warps have work, too
  bool light = is_light(p);
  std::vector<PairTile> pair_tiles = sm90_pair_tiles(problem, collects);

  bool only_sums() const;
  bool holds_little() const;
  bool adds_tiles() const;
};

/// Trained reads keep no per-pair term in registers.
bool BackwardFacts::only_sums() const {
  return plan.count([](const PlannedRead& planned) {
    const ReadFacts& read = planned.facts;
    const bool summed = read.over == scoring::Varies::uniform || read.over == scoring::Varies::column;
    return !read.follows_from_dk && (read.factor_of_score || !summed);
  }) == 0;
}

/// The score takes no more registers per pair than the plain pass.
bool BackwardFacts::holds_little() const {
  const bool plain = bare && !p.has_score_mod() && p.score->reads.empty();
  return plain || (bare && light && only_sums() && !helpers && !reads_pairs(p));
}

/// Tiles are only added to the score, so that no slope per pair has to be kept in registers.
bool BackwardFacts::adds_tiles() const {
  const auto slope = scoring::ancestors(p.score->backward, {p.score->dscore});
  const bool adds = std::none_of(pair_tiles.begin(), pair_tiles.end(),
                                 [&](const PairTile& tile) { return tile.read < slope.size() && slope[tile.read]; });
  return bare && adds && !helpers && !collects && light && !reads_pairs(p, 0, pair_tiles);
}

/// Registers per thread of the producer warpgroup. Above head dim 64 the consumers need all that can be spared; sums along diagonals take
/// more.
int producer_registers(const BackwardFacts& f, bool helpers) {
  if (f.variant.is_wide) return 40;
  if (!helpers) return f.p.gathered ? 40 : 24;
  if (f.dim <= 64) return 72;
  const int diagonals = f.plan.staged().diagonals;
  return f.collects && diagonals > 0 && f.plan.early() == 0 ? 56 : 40;
}

using BackwardRow = Row<BackwardFacts, device::BackwardConfig>;
using B = BackwardFacts;

const std::vector<BackwardRow>& backward_rows() {
  static const std::vector<BackwardRow> rows = {
      {.applies = [](const B& f) { return f.variant.is_wide; },
       .configs = {{.block_q = 64, .block_kv = device::backward_family(device::BackwardKernel::wide).block_kv}},
       .why = "two CTAs of a cluster share a task: shared memory holds no more",
       .measured = grid},
      {.applies = [](const B& f) { return f.dim <= 64 && f.holds_little(); },
       .configs = {{.block_q = 128}, {.block_q = 64}},
       .why = "registers suffice for 128 queries",
       .measured = grid},
      {.applies = [](const B& f) { return f.dim <= 64 && !f.pair_tiles.empty() && f.adds_tiles(); },
       .configs = {{.block_q = 128, .pair_stages = 2},
                   {.block_q = 128, .pair_stages = 1},
                   {.block_q = 64, .pair_stages = 2},
                   {.block_q = 64, .pair_stages = 1}},
       .why = "a bias comes as tiles and is added",
       .measured = notes},
      {.applies = [](const B& f) { return !f.pair_tiles.empty(); },
       .configs = {{.block_q = 64, .pair_stages = 2}, {.block_q = 64, .pair_stages = 1}},
       .why = "reads of pairs come as tiles, and take registers",
       .measured = notes},
      {.applies = [](const B&) { return true; }, .configs = {{.block_q = 64}}, .why = "registers suffice for 64 queries", .measured = grid},
  };
  return rows;
}

/// Fills in the fields that follow from the chosen and tuned ones. nullopt if the configuration does not fit shared memory.
std::optional<Sm90BackwardConfig> completed(const BackwardFacts& f, Sm90BackwardConfig config) {
  const problem::Problem& p = f.p;
  const bool loads_more =
      f.dim <= 64 && config.pair_stages > 0 && config.block_q == 64;  // the loading warp takes part in the helpers' work
  config.kernel = f.variant.kernel;
  config.producer_registers = producer_registers(f, f.helpers || loads_more);
  config.collects = f.collects;
  config.staged = f.staged;
  config.lines = f.lines;
  if (config.pair_stages > 0) config.tiles = f.pair_tiles;
  if (!fits(p, config)) return std::nullopt;
  if (config.cluster_size() == 1) {
    if (f.collects) config.bins = sm90_bins(f.plan, sm90_shared_limit - config.shared_bytes(p));
    if (p.has_score_mod())
      config.tables = sm90_fitting_tables(find_read_tables(p, config.tiles), sm90_shared_limit - config.shared_bytes(p));
  }
  config.reads = f.plan.placed(config.bins).reads;
  return config;
}

std::optional<std::string> illegal(const BackwardFacts& f, const Sm90BackwardConfig& config) {
  const problem::Problem& p = f.p;
  if (config.block_kv != f.variant.block_kv()) return base::join("block_kv must be ", f.variant.block_kv(), " at this head_dim");
  if (config.block_q != 64 && config.block_q != 128) return "block_q must be 64 or 128";
  if (config.block_q == 128 && (f.dim > 64 || (f.collects && !f.only_sums()))) return "block_q 128 needs more registers than there are";
  if (config.stages != 2) return "stages must be 2";
  if (config.pair_stages < 0 || config.pair_stages > 2 || (config.pair_stages > 0 && f.pair_tiles.empty()))
    return "pair_stages must be 0 to 2, and 0 where no read can be loaded as tiles";
  const int tasks = config.group_tasks;
  if (tasks < 0 || (tasks > 0 && p.group_size % tasks != 0) || (tasks > 1 && !sm90_splits_groups(p)))
    return base::join("the ", p.group_size, " query heads of a kv head cannot be split among ", tasks, " tasks");
  if (!fits(p, config)) return base::join(config.shared_bytes(p), " bytes of shared memory exceed ", sm90_shared_limit);
  return std::nullopt;
}

std::vector<Chosen<Sm90BackwardConfig>> backward_chosen(const BackwardFacts& f) {
  const auto complete = [](const BackwardFacts& facts, const device::BackwardConfig& chosen) {
    return completed(facts, Sm90BackwardConfig{chosen});
  };
  return chosen_of(backward_rows(), f, complete, [&](const Sm90BackwardConfig& config) { return illegal(f, config); });
}

}  // namespace

std::vector<Sm90BackwardConfig> sm90_backward_candidates(const HopperProblem& problem, const ReadPlan& plan) {
  return configs_of(backward_chosen({problem, plan}));
}

std::optional<Chosen<Sm90BackwardConfig>> sm90_backward_choice(const HopperProblem& problem, const ReadPlan& plan,
                                                               const std::string& device) {
  const BackwardFacts facts{problem, plan};
  return choice(
      facts.p, device, Sm90BackwardConfig::family, backward_chosen(facts),
      [&](const Sm90BackwardConfig& config) { return completed(facts, config); },
      [&](const Sm90BackwardConfig& config) { return illegal(facts, config); });
}

std::optional<std::string> sm90_illegal(const HopperProblem& problem, const ReadPlan& plan, const Sm90BackwardConfig& config) {
  return illegal({problem, plan}, config);
}

std::vector<Sm90BackwardConfig> sm90_backward_space(const HopperProblem& problem, const ReadPlan& plan) {
  const BackwardFacts facts{problem, plan};
  const problem::Problem& p = facts.p;
  std::vector<Sm90BackwardConfig> space = configs_of(backward_chosen(facts));
  for (const int block_q : {64, 128})
    for (const int pair_stages : {0, 1, 2})
      for (int tasks = 0; tasks <= (p.group_size > 1 ? p.group_size : 0); ++tasks) {
        const auto config =
            completed(facts, {{.block_q = block_q, .block_kv = facts.variant.block_kv(), .pair_stages = pair_stages}, tasks});
        if (config && !illegal(facts, *config)) add_new(*config, space);
      }
  return space;
}

}  // namespace foveal::cuda
