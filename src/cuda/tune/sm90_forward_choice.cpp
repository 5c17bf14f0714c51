// Which configuration a Hopper forward kernel runs in: facts of the problem, rows that were measured, and what is legal.

#include "base/divide.h"
#include "cuda/tune/choice.h"

namespace foveal::cuda {
namespace {

/// What rows of the forward tables depend on.
struct ForwardFacts {
  const HopperProblem& problem;
  const problem::Problem& p = problem.problem;
  std::int64_t dim = std::max(p.head_dim, p.head_dim_v);
  std::int64_t rows = p.seqlen_q * p.group_size;  ///< of queries that share keys
  device::TileSource tiles = problem.mask.tiles;
  bool bf16 = p.dtype == DType::bf16;
  bool scored = p.has_score_mod();
  bool listed = problem.mask.is_list();
  bool skips = tiles != device::TileSource::all;  ///< tiles, so that rows are short
  bool dropout = p.attention.dropout_p > 0;
  bool plain = !scored && !listed && !dropout;
  LineValues lines = sm90_line_values(problem);
  std::vector<PairTile> pair_tiles = sm90_pair_tiles(problem);
  bool wide_pair_tiles = pair_tiles.size() > 1 || (pair_tiles.size() == 1 && pair_tiles[0].element_bytes > 2);
  bool reads_pairs = cuda::reads_pairs(p, 0, pair_tiles);
  bool special = evaluates_special_functions(p);
  bool light = is_light(p);
  bool capped = scored && is_softcap(problem.forms());
  bool sum = scored && is_sum(problem.forms());
  std::vector<ReadTable> tables = scored ? find_read_tables(p, {}) : std::vector<ReadTable>{};  ///< where no read comes as tiles
  std::vector<ReadTable> tables_beside_tiles = pair_tiles.empty() ? tables : find_read_tables(p, pair_tiles);
  std::vector<scoring::ValueId> row_values = find_row_values(p);
  std::vector<scoring::ValueId> long_row_values = row_values.empty() ? row_values : find_long_row_values(problem.forms(), row_values);
  bool may_be_raw = bf16 && !p.part;  ///< offsets may be added to raw scores: a task that overflows is repeated
  int columns = may_be_raw ? offsets_as_columns(p, lines) : 0;
  /// For three warpgroups whose tables fit. With two it was slower under causal masks and for tables indexed by a difference of positions.
  bool offsets_first = may_be_raw && dim <= 64 && !skips && !dropout && come_first(pair_tiles, tables_beside_tiles);

  bool is_decode() const;
  bool come_first(const std::vector<PairTile>& used_tiles, const std::vector<ReadTable>& used_tables) const {
    return scored && offsets_come_first(problem.forms(), used_tiles, used_tables);
  }
};

/// Decode and short prefill, bound by reading keys and values: heads of a group may share a tile, and tasks may share the keys.
bool ForwardFacts::is_decode() const {
  constexpr int most_rows = 128;
  if (dropout || p.part || p.seqlen_q >= most_rows || p.group_size > most_rows || p.q.strides[2] * p.group_size >= std::int64_t{1} << 39)
    return false;
  if (rows > 64 && p.group_size == 1) return false;
  if (scored && rows > most_rows) return false;  // compute-bound, and scores cost more where heads share a tile
  return !(listed && p.group_size > 1 && mask_depends_on_head(p));
}

using ForwardRow = Row<ForwardFacts, device::ForwardConfig>;
using F = ForwardFacts;

/// Decode and short prefill, where is_decode(): all heads of a group are packed, and loads run as many stages ahead as fit.
const std::vector<ForwardRow>& decode_rows() {
  static const std::vector<ForwardRow> rows = {
      {.applies = [](const F& f) { return f.rows <= 64 && f.dim <= 80; },
       .configs = {{.block_kv = 128, .consumers = 1, .stages = 4, .ping_pong = false}},
       .why = "one warpgroup holds all queries",
       .measured = notes},
      {.applies = [](const F& f) { return f.rows <= 64 && f.dim <= 128; },
       .configs = {{.block_kv = 128, .consumers = 1, .stages = 4, .ping_pong = false, .intra_warpgroup_overlap = true}},
       .why = "one warpgroup holds all queries",
       .measured = notes},
      {.applies = [](const F& f) { return f.rows <= 64 && f.dim <= 192; },
       .configs = {{.block_kv = 96, .consumers = 1, .stages = 4, .ping_pong = false, .intra_warpgroup_overlap = true}},
       .why = "one warpgroup holds all queries; narrower tiles leave room for stages",
       .measured = notes},
      {.applies = [](const F& f) { return f.rows <= 64; },
       .configs = {{.block_kv = 80, .consumers = 1, .stages = 4, .ping_pong = false, .intra_warpgroup_overlap = true}},
       .why = "one warpgroup holds all queries; narrower tiles leave room for stages",
       .measured = notes},
      {.applies = [](const F& f) { return f.dim <= 80; },
       .configs = {{.block_kv = 128, .stages = 4}},
       .why = "two warpgroups share the queries",
       .measured = notes},
      {.applies = [](const F& f) { return f.dim <= 128; },
       .configs = {{.block_kv = 128, .stages = 4, .intra_warpgroup_overlap = true}},
       .why = "two warpgroups share the queries",
       .measured = notes},
      {.applies = [](const F& f) { return f.dim <= 192; },
       .configs = {{.block_kv = 96, .stages = 4, .intra_warpgroup_overlap = true}},
       .why = "two warpgroups share the queries; narrower tiles leave room for stages",
       .measured = notes},
      {.applies = [](const F&) { return true; },
       .configs = {{.block_kv = 64, .stages = 4, .intra_warpgroup_overlap = true}},
       .why = "two warpgroups share the queries; narrower tiles leave room for stages",
       .measured = notes},
  };
  return rows;
}

constexpr const char* reads = "bench/results/h100-reads.jsonl";

/// Where tensor cores add the offsets of a score: tried before the others.
const std::vector<ForwardRow>& offset_rows() {
  static const std::vector<ForwardRow> rows = {
      {.applies = [](const F& f) { return f.dim <= 64 && f.columns > 0 && !f.listed && !f.dropout; },
       .configs = {{.block_kv = 160}, {.block_kv = 128}},
       .why = "offsets as columns beside the head dim: scores like those of a plain pass",
       .measured = reads},
      {.applies = [](const F& f) { return f.offsets_first; },
       .configs = {{.block_kv = 128, .consumers = 3}},
       .why = "offsets of tables that integers choose from begin the scores, and registers suffice for three warpgroups",
       .measured = reads},
  };
  return rows;
}

const std::vector<ForwardRow>& forward_rows() {
  static const device::ForwardConfig two{.block_kv = 128}, three{.block_kv = 128, .consumers = 3}, wide{.block_kv = 160};
  static const device::ForwardConfig late{.block_kv = 128, .intra_warpgroup_overlap = true},
      late_wide{.block_kv = 160, .intra_warpgroup_overlap = true};
  static const std::vector<ForwardRow> rows = {
      {.applies = [](const F& f) { return f.dim <= 64 && (f.listed || f.dropout || f.reads_pairs); },
       .configs = {two},
       .why = "the mask, dropout or reads of pairs need registers",
       .measured = notes},
      {.applies = [](const F& f) { return f.dim <= 64 && f.wide_pair_tiles; },
       .configs = {two},
       .why = "tiles of a bias fill shared memory",
       .measured = notes},
      {.applies = [](const F& f) { return f.dim <= 64 && f.bf16 && f.capped; },
       .configs = {two},
       .why = "a softcap: other widths and three warpgroups gave 1.00 to 1.18 of the time",
       .measured = notes},
      {.applies = [](const F& f) { return f.dim <= 64 && f.lines.empty() && f.special; },
       .configs = {{.block_kv = 112, .consumers = 3}, two},
       .why = "the unit for special functions binds: three warpgroups keep it busy, and registers suffice for a narrow tile",
       .measured = notes},
      {.applies = [](const F& f) { return f.dim <= 64 && !f.light; },
       .configs = {two},
       .why = "the score needs registers",
       .measured = notes},
      {.applies = [](const F& f) { return f.dim <= 64 && ((f.skips && f.p.seqlen_q <= 1024) || f.p.seqlen_q <= 128); },
       .configs = {two, three},
       .why = "short sequences: narrower tasks even out",
       .measured = grid},
      {.applies = [](const F& f) { return f.dim <= 64 && f.lines.walk.size() > (f.sum ? 2 : 1); },
       .configs = {two},
       .why = "beside values of rows, which registers hold, a wide tile spills",
       .measured = "docs/lab/gpu-experiments.md"},
      {.applies = [](const F& f) { return f.dim <= 64 && f.bf16 && f.sum && f.pair_tiles.empty(); },
       .configs = {wide, three},
       .why = "a score that is a sum: fewer and wider tiles, fewer waits for them (0.81 to 0.98 of the time)",
       .measured = notes},
      {.applies = [](const F& f) { return f.dim <= 64; },
       .configs = {three, two},
       .why = "three warpgroups hide the softmax of each other",
       .measured = grid},
      {.applies = [](const F& f) { return f.dim <= 80 && f.plain; },
       .configs = {{.block_kv = 112, .consumers = 3}},
       .why = "three warpgroups, as wide a tile as their registers hold",
       .measured = grid},
      {.applies = [](const F& f) { return f.dim <= 96 && f.plain; },
       .configs = {{.block_kv = 144, .intra_warpgroup_overlap = true}},
       .why = "as wide a tile as shared memory holds",
       .measured = grid},
      {.applies = [](const F& f) { return f.dim <= 128 && f.plain && f.p.seqlen_kv >= (f.skips ? 8192 : 4096); },
       .configs = {late_wide, late},
       .why = "long sequences: fewer and wider tiles",
       .measured = grid},
      {.applies = [](const F& f) { return f.dim <= 128 && f.plain; },
       .configs = {late, late_wide},
       .why = "short sequences: narrower tiles waste less",
       .measured = grid},
      {.applies = [](const F& f) { return f.dim <= 128; }, .configs = {late}, .why = "the score needs registers", .measured = notes},
      {.applies = [](const F& f) { return f.dim <= 192 && f.p.head_dim_v <= 128; },
       .configs = {{.block_kv = 128, .query_stages = 1, .intra_warpgroup_overlap = true}},
       .why = "keys wider than values: one tile of queries leaves room for 128 keys",
       .measured = grid},
      {.applies = [](const F& f) { return f.dim <= 192; },
       .configs = {{.block_kv = 96, .query_stages = 1, .ping_pong = false, .intra_warpgroup_overlap = true}},
       .why = "as wide a tile as shared memory holds",
       .measured = grid},
      {.applies = [](const F& f) { return f.plain && !f.skips && f.p.seqlen_kv > 1024; },
       .configs = {{.block_kv = 80, .query_stages = 1, .ping_pong = false, .intra_warpgroup_overlap = true}},
       .why = "as wide a tile as shared memory holds",
       .measured = grid},
      {.applies = [](const F&) { return true; },
       .configs = {{.block_kv = 64, .query_stages = 1, .ping_pong = false, .intra_warpgroup_overlap = true}},
       .why = "the score needs registers, or rows have few tiles, of which narrow ones waste less (0.89 to 0.98 of the time of 80 keys)",
       .measured = "bench/results/h200-widths.jsonl"},
  };
  return rows;
}

/// Sets the line values, and the offsets that tensor cores add as columns beside the head dim.
void take_lines(const ForwardFacts& f, Sm90ForwardConfig& config) {
  config.lines = f.lines;
  config.raw_offsets = f.may_be_raw && !config.is_decode();
  if (config.is_decode() || f.columns == 0) return;
  config.offset_steps = device::offset_steps(f.columns);
  config.lines.checked = true;
}

/// Fills in the fields that follow from the chosen and tuned ones. nullopt if the configuration does not fit shared memory.
std::optional<Sm90ForwardConfig> completed(const ForwardFacts& f, const device::ForwardConfig& chosen) {
  Sm90ForwardConfig config{chosen};
  config.paged = f.p.paged || f.p.spread;
  config.tile_source = f.tiles;
  if (config.packed_heads == 1) take_lines(f, config);  // of one head
  if (config.pair_stages > 0) config.tiles = f.pair_tiles;
  const std::size_t taken = config.shared_bytes(f.p);
  if (taken > sm90_shared_limit) return std::nullopt;
  if (!config.is_decode())
    config.tables = sm90_fitting_tables(config.tiles.empty() ? f.tables : f.tables_beside_tiles, sm90_shared_limit - taken);
  config.offsets_first = f.offsets_first && config.consumers == 3 && f.come_first(config.tiles, config.tables);
  config.row_values = config.offsets_first ? f.row_values : f.long_row_values;
  return config;
}

/// Decode: packs all heads of a group, with as many stages as fit shared memory. nullopt if even the fewest do not fit; tiles then have one
/// head.
std::optional<Sm90ForwardConfig> with_heads_and_stages(const ForwardFacts& f, device::ForwardConfig config) {
  config.packed_heads = static_cast<int>(f.p.group_size);
  for (;;) {
    if (auto whole = completed(f, config)) return whole;
    if (config.stages > 2) {
      --config.stages;
    } else if (config.query_stages > 1) {
      config.query_stages = 1;
    } else {
      return std::nullopt;
    }
  }
}

/// Divides the shared memory that K and V leave, in this order: tables that pairs read at any index (without them each pair gathers from
/// L2, which takes 20 times the plain pass for a table indexed by a matrix of integers), stages of tiles for reads of one element per pair,
/// the queries of the next task.
std::optional<Sm90ForwardConfig> with_pair_tiles_and_tables(const ForwardFacts& f, const device::ForwardConfig& config) {
  std::optional<Sm90ForwardConfig> best;
  const auto consider = [&](int pair_stages, int query_stages) {
    device::ForwardConfig tried = config;
    tried.pair_stages = pair_stages;
    tried.query_stages = std::min(config.query_stages, query_stages);
    auto whole = completed(f, tried);
    if (whole && (!best || whole->tables.size() > best->tables.size())) best = std::move(whole);
  };
  if (!f.pair_tiles.empty())
    for (const auto& [pair_stages, query_stages] : {std::pair{2, 2}, {2, 1}, {1, 2}, {1, 1}}) consider(pair_stages, query_stages);
  for (int query_stages = config.query_stages; query_stages >= 1; --query_stages) consider(0, query_stages);
  return best;
}

std::optional<std::string> illegal(const ForwardFacts& f, const Sm90ForwardConfig& config) {
  const problem::Problem& p = f.p;
  if (config.block_kv % 16 != 0 || config.block_kv < 16 || config.block_kv > 256)
    return base::join("block_kv ", config.block_kv, " must be a multiple of 16 from 16 to 256");
  if (config.consumers < 1 || config.consumers > 3 || config.stages < 2 || config.stages > 8 || config.query_stages < 1 ||
      config.query_stages > 2 || config.pair_stages < 0 || config.pair_stages > 2)
    return "consumers must be 1 to 3, stages 2 to 8, query_stages 1 or 2, pair_stages 0 to 2";
  if (config.packed_heads != 1 && config.packed_heads != p.group_size)
    return base::join("packed_heads ", config.packed_heads, " must be 1 or ", p.group_size);
  if (config.is_decode() && (!f.is_decode() || config.packed_heads != p.group_size || config.queries() < 1 ||
                             (config.consumers == 1) != (f.rows <= 64) || config.consumers == 3))
    return "one warpgroup and packed heads must be, and may only be, used for few queries";
  if (config.ping_pong && config.consumers == 1) return "ping_pong must be 0 with one consumer";
  if (config.pair_stages > 0 && (f.pair_tiles.empty() || config.is_decode()))
    return "pair_stages must be 0 where no read can be loaded as tiles";
  if (config.consumers == 3 && f.offsets_first && !config.offsets_first) return "three warpgroups have no registers for reads of pairs";
  // Accumulators of the output, scores, probabilities, and what else a thread has.
  const std::int64_t registers = base::round_up(p.head_dim_v, 16) / 2 + config.block_kv / 2 + config.block_kv / 4 + 24;
  const int most = config.consumer_registers();
  if (registers > most) return base::join(registers, " registers per thread exceed ", most);
  if (!fits(p, config)) return base::join(config.shared_bytes(p), " bytes of shared memory exceed ", sm90_shared_limit);
  return std::nullopt;
}

std::vector<Chosen<Sm90ForwardConfig>> forward_chosen(const ForwardFacts& f) {
  const auto is_illegal = [&](const Sm90ForwardConfig& config) { return illegal(f, config); };
  if (f.is_decode())
    if (auto chosen = chosen_of(decode_rows(), f, with_heads_and_stages, is_illegal); !chosen.empty()) return chosen;
  if (auto chosen = chosen_of(offset_rows(), f, with_pair_tiles_and_tables, is_illegal); !chosen.empty()) return chosen;
  return chosen_of(forward_rows(), f, with_pair_tiles_and_tables, is_illegal);
}

}  // namespace

std::vector<Sm90ForwardConfig> sm90_forward_candidates(const HopperProblem& problem) { return configs_of(forward_chosen({problem})); }

std::optional<Chosen<Sm90ForwardConfig>> sm90_forward_choice(const HopperProblem& problem, const std::string& device) {
  const ForwardFacts facts{problem};
  return choice(
      facts.p, device, Sm90ForwardConfig::family, forward_chosen(facts),
      [&](const device::ForwardConfig& config) { return completed(facts, config); },
      [&](const Sm90ForwardConfig& config) { return illegal(facts, config); });
}

std::optional<std::string> sm90_illegal(const HopperProblem& problem, const Sm90ForwardConfig& config) {
  return illegal({problem}, config);
}

std::vector<Sm90ForwardConfig> sm90_forward_space(const HopperProblem& problem) {
  const ForwardFacts facts{problem};
  std::vector<Sm90ForwardConfig> space = configs_of(forward_chosen(facts));
  const bool decode = facts.is_decode();
  const auto add = [&](const std::optional<Sm90ForwardConfig>& config) {
    if (config && !illegal(facts, *config)) add_new(*config, space);
  };
  for (const int consumers : {1, 2, 3})
    for (const int block_kv : {64, 80, 96, 112, 128, 144, 160, 176, 192})
      for (const bool ping_pong : {true, false})
        for (const bool overlap : {false, true}) {
          device::ForwardConfig config{.block_kv = block_kv,
                                       .consumers = consumers,
                                       .stages = decode ? 4 : 2,
                                       .ping_pong = ping_pong,
                                       .intra_warpgroup_overlap = overlap,
                                       .tile_source = facts.tiles};
          if (decode) {
            add(with_heads_and_stages(facts, config));
            config.stages = 2;
          }
          for (config.query_stages = 2; config.query_stages > 1 && !fits(facts.p, Sm90ForwardConfig{config});) --config.query_stages;
          add(with_pair_tiles_and_tables(facts, config));
        }
  return space;
}

}  // namespace foveal::cuda
