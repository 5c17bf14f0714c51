// Which configuration a Hopper backward kernel runs in: facts of the problem, rows that were measured, and what is legal.
#include "cuda/tune/choice.h"
#include "cuda/tune/read_plan.h"
#include "cuda/tune/sm90_backward_schedule.h"

namespace foveal::cuda {
namespace {

struct BackwardFacts {
  const problem::Problem& p;
  const ReadPlan& plan;
  const Sm90BackwardVariant& variant = sm90_backward_variant(p);
  std::int64_t dim = std::max(p.head_dim, p.head_dim_v);
  bool bare = sm90_mask(p).tiles != Sm90Tiles::list && p.attention.dropout_p == 0 && !p.ragged_kv();
  bool collects = plan.hopper;
  StagedReads staged = collects && !variant.is_wide ? plan.staged() : StagedReads{};
  LineValues lines = sm90_line_values(p, {.block_kv = variant.block_kv(), .staged = staged});
  bool helpers = staged.any() || !lines.empty();  ///< the warps beside the one that loads have work
  bool light = is_light(p);
  std::vector<PairTile> pair_tiles = sm90_pair_tiles(p, collects);

  bool only_sums() const;
  bool holds_little() const;
  bool adds_tiles() const;
};

/// Trained reads keep no per-pair term in registers.
bool BackwardFacts::only_sums() const {
  return plan.count([](const PlannedRead& planned) {
    const ReadFacts& read = planned.facts;
    const bool summed = read.kind == scoring::Reduction::uniform || read.kind == scoring::Reduction::column;
    return !read.follows_from_dk && (read.factor_of_score || !summed);
  }) == 0;
}

/// Registers hold no more per pair than in the plain pass.
bool BackwardFacts::holds_little() const {
  const bool plain = bare && !p.has_score_mod() && p.score->reads.empty();
  return plain || (bare && light && only_sums() && !helpers && !reads_pairs(p));
}

/// Tiles are only added to the score, so that no slope per pair takes registers.
bool BackwardFacts::adds_tiles() const {
  const auto slope = scoring::ancestors(p.score->backward, {p.score->dscore});
  const bool adds = std::none_of(pair_tiles.begin(), pair_tiles.end(),
                                 [&](const PairTile& tile) { return tile.read < slope.size() && slope[tile.read]; });
  return bare && adds && !helpers && !collects && light && !reads_pairs(p, 0, pair_tiles);
}

/// Registers per thread of the producer warpgroup. Above head dim 64 the consumers need all that
/// can be spared; sums along diagonals need more.
int producer_registers(const BackwardFacts& f, bool helpers) {
  if (f.variant.is_wide) return 40;
  if (!helpers) return f.p.gathered ? 40 : 24;
  if (f.dim <= 64) return 72;
  const int diagonals = f.plan.staged().diagonals;
  return f.collects && diagonals > 0 && f.plan.early() == 0 ? 56 : 40;
}

using BackwardRow = Row<BackwardFacts, Sm90BackwardConfig>;
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

/// With what follows from the fields that are chosen and tuned. Nothing where these do not fit.
std::optional<Sm90BackwardConfig> completed(const BackwardFacts& f, Sm90BackwardConfig config) {
  const problem::Problem& p = f.p;
  const bool loads_more = f.dim <= 64 && config.pair_stages > 0 && config.block_q == 64;  // the warp that loads is one of the helpers
  config.producer_registers = producer_registers(f, f.helpers || loads_more);
  config.collects = f.collects;
  config.staged = f.staged;
  config.lines = f.lines;
  if (config.pair_stages > 0) config.tiles = f.pair_tiles;
  if (!fits(p, config)) return std::nullopt;
  if (config.cluster_size() == 1) {
    if (f.collects) config.bins = sm90_bins(f.plan, sm90_shared_limit - config.shared_bytes(p));
    config.tables = sm90_fitting_tables(p, config.tiles, sm90_shared_limit - config.shared_bytes(p));
  }
  config.reads = f.plan.placed(config.bins).reads;
  return config;
}

std::vector<Chosen<Sm90BackwardConfig>> backward_chosen(const BackwardFacts& f) {
  return chosen_of(backward_rows(), f, completed, [&](const Sm90BackwardConfig& config) { return sm90_illegal(f.p, f.plan, config); });
}

}  // namespace

std::vector<Sm90BackwardConfig> sm90_backward_candidates(const problem::Problem& p, const ReadPlan& plan) {
  return configs_of(backward_chosen({p, plan}));
}

std::optional<Chosen<Sm90BackwardConfig>> sm90_backward_choice(const problem::Problem& p, const ReadPlan& plan, const std::string& device) {
  const BackwardFacts facts{p, plan};
  return choice(
      p, device, Sm90BackwardConfig::family, backward_chosen(facts),
      [&](const Sm90BackwardConfig& config) { return completed(facts, config); },
      [&](const Sm90BackwardConfig& config) { return sm90_illegal(p, plan, config); });
}

std::optional<std::string> sm90_illegal(const problem::Problem& p, const ReadPlan& plan, const Sm90BackwardConfig& config) {
  const BackwardFacts f{p, plan};
  if (config.block_kv != f.variant.block_kv()) return base::join("block_kv is ", f.variant.block_kv(), " at this head_dim");
  if (config.block_q != 64 && config.block_q != 128) return "block_q is 64 or 128";
  if (config.block_q == 128 && (f.dim > 64 || (f.collects && !f.only_sums()))) return "registers do not suffice for 128 queries";
  if (config.stages != 2) return "stages are 2";
  if (config.pair_stages < 0 || config.pair_stages > 2 || (config.pair_stages > 0 && f.pair_tiles.empty()))
    return "pair_stages are 0 to 2, and 0 where no read comes as tiles";
  const int tasks = config.group_tasks;
  if (tasks < 0 || (tasks > 0 && p.group_size % tasks != 0) || (tasks > 1 && !sm90_splits_groups(p)))
    return base::join("the ", p.group_size, " query heads of a kv head are not split among ", tasks, " tasks");
  if (!fits(p, config)) return base::join(config.shared_bytes(p), " bytes of shared memory exceed ", sm90_shared_limit);
  return std::nullopt;
}

std::vector<Sm90BackwardConfig> sm90_backward_space(const problem::Problem& p, const ReadPlan& plan) {
  const BackwardFacts facts{p, plan};
  std::vector<Sm90BackwardConfig> space = sm90_backward_candidates(p, plan);
  for (const int block_q : {64, 128})
    for (const int pair_stages : {0, 1, 2})
      for (int tasks = 0; tasks <= (p.group_size > 1 ? p.group_size : 0); ++tasks) {
        const auto config =
            completed(facts, {.block_q = block_q, .block_kv = facts.variant.block_kv(), .pair_stages = pair_stages, .group_tasks = tasks});
        if (config && !sm90_illegal(p, plan, *config)) add_new(*config, space);
      }
  return space;
}

}  // namespace foveal::cuda
