#include "cuda/tune/sm90.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/divide.h"
#include "cuda/tune/read_plan.h"
#include "score/column_forms.h"

namespace foveal {

std::string device::value_text(BackwardKernel kernel) {
  static constexpr const char* names[] = {"narrow", "wide", "collect"};
  static_assert(std::size(names) == static_cast<std::size_t>(BackwardKernel::collect) + 1);
  return base::join("foveal::device::BackwardKernel::", names[static_cast<std::size_t>(kernel)]);
}

namespace cuda {
namespace {

std::size_t bytes_of_tables(const std::vector<ReadTable>& tables) {
  std::size_t bytes = 0;
  for (const ReadTable& table : tables) bytes += 4 * static_cast<std::size_t>(table.entries) * static_cast<std::size_t>(table.copies);
  return bytes;
}

std::string text_of(const std::vector<ReadTable>& tables) {
  std::string text;
  for (const ReadTable& table : tables)
    text += base::join(text.empty() ? ", reads in shared memory: " : ", ", table.entries, " x ", table.copies);
  return text;
}

/// Are twice as many copies worth their room? Large tables rarely have bank conflicts, and are filled or emptied for every task.
bool more_copies(std::int64_t entries, int copies) { return copies < 32 && 2 * copies * entries <= 4096; }

/// Of the sums of scatters (ReadBins of tile/read_bins.cuh).
std::size_t bytes_of_bins(const std::vector<ReadBins>& reads) {
  int words = 0;
  for (const ReadBins& read : reads)
    if (read.copies > 0) words += device::read_bin_words(read.entries, read.copies, read.is_window());
  return 4 * static_cast<std::size_t>(words);
}

int bytes_of_staged(StagedReads reads, int block_q, int block_kv) {
  using Shape = device::ReadStageShape;
  return 4 * (reads.rows * Shape::floats(block_q, block_kv, false) + reads.diagonals * Shape::floats(block_q, block_kv, true));
}

/// The pipeline of the tiles of these reads.
device::PairPipelineShape pair_pipeline(const std::vector<PairTile>& tiles, int stages, int rows, int columns) {
  device::PairPipelineShape pipeline{.stages = stages, .stage_bytes = 0};
  for (const PairTile& tile : tiles)
    pipeline.stage_bytes += device::PairTileShape{tile.element_bytes, tile.stairs, tile.keys}.bytes(rows, columns);
  return pipeline;
}

/// Of a kernel with the tiles of the backward pass.
template <class Config>
std::size_t bytes_of_backward(const Config& config, const problem::Problem& p, device::PairPipelineShape pairs, std::size_t table_bytes) {
  const int block_q = config.block_q, block_kv = config.block_kv;
  const auto shape = config.shape();
  const device::BackwardLayout layout({.block_q = block_q,
                                       .block_kv = block_kv,
                                       .head_dim = static_cast<int>(p.head_dim),
                                       .head_dim_v = static_cast<int>(p.head_dim_v),
                                       .stages = config.stages,
                                       .key_chunks = shape.key_chunks(device::DqSumShape(static_cast<int>(p.head_dim), block_q)),
                                       .peer_key_chunks = shape.peer_key_chunks(),
                                       .ds_tiles = shape.ds_tiles(),
                                       .pairs = pairs,
                                       .line_floats = static_cast<int>(config.lines.count(block_kv, block_q)),
                                       .read_stage_bytes = bytes_of_staged(config.staged, block_q, block_kv),
                                       .read_bin_bytes = static_cast<int>(bytes_of_bins(config.bins)),
                                       .table_bytes = static_cast<int>(table_bytes)});
  return static_cast<std::size_t>(layout.bytes);
}

}  // namespace

std::size_t Sm90ForwardConfig::shared_bytes(const problem::Problem& p) const {
  const device::ForwardLayout layout({.block_q = block_q(),
                                      .block_kv = block_kv,
                                      .head_dim = static_cast<int>(p.head_dim),
                                      .head_dim_v = static_cast<int>(p.head_dim_v),
                                      .stages = stages,
                                      .query_stages = query_stages,
                                      .pairs = pair_pipeline(tiles, pair_stages, block_q(), block_kv),
                                      .line_floats = static_cast<int>(lines.count(block_q(), block_kv)),
                                      .column_bytes = offset_steps * device::offset_step_bytes(block_kv),
                                      .table_bytes = static_cast<int>(bytes_of_tables(tables)),
                                      .has_mask = tile_source == device::TileSource::list});
  return static_cast<std::size_t>(layout.bytes);
}

std::string Sm90ForwardConfig::text() const {
  return base::join(block_q(), "x", block_kv, packed_heads > 1 ? base::join(" of ", packed_heads, " heads") : "", " stages ", stages,
                    query_stages > 1 ? " queries ahead" : "", ping_pong ? " ping-pong" : "",
                    pair_stages > 0 ? base::join(", stages of pairs ", pair_stages) : "", text_of(tables));
}

std::size_t Sm90BackwardConfig::shared_bytes(const problem::Problem& p) const {
  return bytes_of_backward(*this, p, pair_pipeline(tiles, pair_stages, block_q, block_kv), bytes_of_tables(tables));
}

std::vector<ReadBins> sm90_bins(const ReadPlan& plan, std::size_t room) {
  std::vector<std::size_t> wanted;
  std::vector<ReadBins> bins;
  const auto entries = [&](std::size_t r) { return plan.reads[r].has_own_kernel() ? 0 : plan.reads[r].facts.elements; };
  for (std::size_t r = 0; r < plan.reads.size(); ++r) {
    if (entries(r) > 0) wanted.push_back(r);
    bins.push_back({.elements = entries(r)});
  }
  std::stable_sort(wanted.begin(), wanted.end(), [&](std::size_t a, std::size_t b) { return entries(a) < entries(b); });
  const auto try_one = [&](std::size_t r, int count, int copies) {
    const ReadBins before = std::exchange(bins[r], {.entries = count, .copies = copies, .elements = entries(r)});
    const bool fits = bytes_of_bins(bins) <= room;
    if (!fits) bins[r] = before;
    return fits;
  };
  std::size_t placed = 0;
  for (const std::size_t r : wanted) {
    if (entries(r) > ReadLimits::whole_bins || !try_one(r, static_cast<int>(entries(r)), 1)) break;
    ++placed;
  }
  for (std::size_t i = placed; i < wanted.size(); ++i) {
    const std::size_t taken = bytes_of_bins(bins);
    const auto share = room > taken ? static_cast<std::int64_t>((room - taken) / 4 / (wanted.size() - i)) - 9 : 0;
    const auto window = static_cast<int>(std::min({share, std::int64_t{ReadLimits::most_in_window}, entries(wanted[i]) - 1}) / 32 * 32);
    if (window >= ReadLimits::least_in_window && plan.reads[wanted[i]].facts.lie_together) try_one(wanted[i], window, 1);
  }
  for (const std::size_t r : wanted)
    while (bins[r].copies > 0 && more_copies(bins[r].entries, bins[r].copies) && try_one(r, bins[r].entries, 2 * bins[r].copies)) continue;
  return bins;
}

std::vector<ReadTable> sm90_fitting_tables(const std::vector<ReadTable>& found, std::size_t room) {
  std::vector<ReadTable> tables;
  for (ReadTable table : found) {
    table.copies = 1;
    tables.push_back(table);
    if (bytes_of_tables(tables) > room) tables.pop_back();
  }
  for (ReadTable& table : tables) {
    while (more_copies(table.elements, table.copies)) {
      table.copies *= 2;
      if (bytes_of_tables(tables) <= room) continue;
      table.copies /= 2;
      break;
    }
  }
  return tables;
}

std::string Sm90BackwardConfig::text() const {
  return base::join(block_q, "x", task_keys(), " stages ", stages, cluster_size() > 1 ? " in clusters" : "",
                    pair_stages > 0 ? base::join(", stages of pairs ", pair_stages) : "",
                    group_tasks > 1 ? base::join(", query heads of a group in ", group_tasks, " tasks") : "", text_of(tables));
}

const Sm90BackwardVariant& sm90_backward_variant(const problem::Problem& p) {
  using device::BackwardKernel;
  static constexpr Sm90BackwardVariant narrow{
      .stem = "backward_sm90", .kernel = BackwardKernel::narrow, .max_head_dim_v = 128, .is_wide = false},
      wide{.stem = "backward_wide_sm90", .kernel = BackwardKernel::wide, .max_head_dim_v = sm90_max_head_dim, .is_wide = true};
  return p.head_dim > 128 ? wide : narrow;
}

std::optional<Sm90CollectConfig> sm90_collect_config(const problem::Problem& p, const ReadPlan& plan) {
  const LineValues lines = find_line_values(p);
  for (const int stages : {2, 1}) {
    Sm90CollectConfig without_lines{{.kernel = device::BackwardKernel::collect,
                                     .block_kv = device::backward_family(device::BackwardKernel::collect).block_kv,
                                     .stages = stages,
                                     .producer_registers = 72,
                                     .collects = true},
                                    plan.staged()};
    Sm90CollectConfig config = without_lines;
    config.lines = lines;
    const auto with_bins = [&](Sm90CollectConfig& fitting) {
      fitting.bins = sm90_bins(plan, sm90_shared_limit - fitting.shared_bytes(p));
      return fitting;
    };
    if (fits(p, config)) {
      const std::vector<ReadBins> bins = with_bins(config).bins;
      if (stages == 1 || std::none_of(bins.begin(), bins.end(), [](const ReadBins& read) { return read.is_window(); })) return config;
    }
    if (stages == 1 && fits(p, without_lines)) return with_bins(without_lines);
  }
  return std::nullopt;
}

std::size_t Sm90CollectConfig::shared_bytes(const problem::Problem& p) const { return bytes_of_backward(*this, p, {}, 0); }

std::size_t Sm90RowsConfig::shared_bytes(const problem::Problem& p) const {
  int words = 0;
  bool transposed = false;
  for (const RowRead& read : reads) {
    words += device::row_bin_words(read.entries, read.bins());
    transposed = transposed || read.bins() == device::RowBins::any;
  }
  const device::RowsLayout layout({.block_q = block_q(),
                                   .block_kv = block_kv,
                                   .head_dim = static_cast<int>(base::round_up(p.head_dim, 16)),
                                   .head_dim_v = static_cast<int>(base::round_up(p.head_dim_v, 16)),
                                   .stages = stages,
                                   .bin_words = words,
                                   .transposed = transposed});
  return static_cast<std::size_t>(layout.bytes);
}

unsigned Sm90PairsConfig::shared_bytes(const problem::Problem& p) const {
  const device::PairsLayout layout({.block_q = block_q,
                                    .block_kv = block_kv,
                                    .head_dim = static_cast<int>(p.head_dim),
                                    .head_dim_v = static_cast<int>(p.head_dim_v),
                                    .stages = stages,
                                    .tasks_ahead = tasks_ahead,
                                    .pairs = pair_pipeline(tiles, pair_stages, block_q, 64)});
  return static_cast<unsigned>(layout.bytes);
}

// Two warpgroups, although three would read less of q, k, v and dout for each pair: their registers spill, and take a fifth longer.
Sm90PairsConfig sm90_pairs_config(const problem::Problem& p) {
  const std::int64_t dim = std::max(p.head_dim, p.head_dim_v);
  const int stages = dim <= 128 ? 2 : 1;  // shared memory holds no more
  Sm90PairsConfig loads{{.block_kv = dim <= 64 ? 128 : 64, .stages = dim <= 64 ? 3 : stages}};
  const std::vector<PairTile> tiles = find_pair_tiles(ScoreForms(p, program_of(p)));
  if (tiles.empty()) return loads;
  for (const int pair_stages : {4, 3, 2, 1})
    if (Sm90PairsConfig config{{.block_kv = loads.block_kv, .stages = stages, .pair_stages = pair_stages}, tiles}; fits(p, config))
      return config;
  return loads;
}

std::optional<Sm90RowsConfig> sm90_rows_config(const problem::Problem& p, std::vector<RowRead> reads) {
  std::stable_sort(reads.begin(), reads.end(), [](const RowRead& a, const RowRead& b) { return a.entries < b.entries; });
  if (reads.size() > max_row_reads) reads.resize(max_row_reads);
  for (int in_registers = 0; RowRead & read : reads)
    if (read.repeats && read.run < 16 && ++in_registers > 2) read.repeats = false;  // registers hold the sums of no more
  for (; !reads.empty(); reads.pop_back())
    for (const auto& [consumers, stages] : {std::pair{2, 3}, {2, 2}, {2, 1}, {1, 2}, {1, 1}})
      if (Sm90RowsConfig config{{.consumers = consumers, .stages = stages}, reads}; fits(p, config)) return config;
  return std::nullopt;
}

LineValues sm90_line_values(const HopperProblem& problem, const Sm90BackwardConfig& config) {
  const problem::Problem& p = problem.problem;
  const bool in_turns = p.attention.determinism == Determinism::reproducible;  // takes the warp that would evaluate them
  if (!p.has_score_mod() || (p.pass == Pass::backward && in_turns)) return {};
  LineValues lines = problem.lines();
  if (p.pass == Pass::forward) return lines;
  // As many as shared memory has room for: those along diagonals serve more pairs.
  const std::size_t taken = config.shared_bytes(p);
  const std::size_t room = taken < sm90_shared_limit ? (sm90_shared_limit - taken) / (4 * static_cast<std::size_t>(config.stages)) : 0;
  for (std::vector<scoring::ValueId>* values : {&lines.walk, &lines.diagonal})
    while (!values->empty() && lines.count(config.block_kv, config.block_q) > room) values->pop_back();
  return lines;
}

std::vector<PairTile> sm90_pair_tiles(const HopperProblem& problem, bool collects) {
  const problem::Problem& p = problem.problem;
  if (std::max(p.head_dim, p.head_dim_v) > 128) return {};
  const bool backward = p.pass == Pass::backward;
  std::vector<PairTile> tiles = backward ? find_transposed_pair_tiles(problem.forms()) : find_pair_tiles(problem.forms());
  if (!backward) {  // values that are the same for all tiles stay in registers
    const auto forms = scoring::column_forms(program_of(p), p.attention.kv_offset);
    const auto stays = [&](const PairTile& tile) {
      return tile.wraps && forms[program_of(p)[tile.read].index[static_cast<std::size_t>(tile.column)]].repeats;
    };
    std::erase_if(tiles, stays);
  }
  const auto wide = [](const PairTile& tile) { return tile.element_bytes > 2 && !tile.stairs && tile.keys == 0; };
  if (tiles.size() > 1) std::erase_if(tiles, wide);  // shared memory has no room for these beside others
  if (collects) {
    std::vector<scoring::ValueId> terms{p.score->dscore};
    for (const scoring::TrainableRead& read : p.score->reads) {
      terms.push_back(read.factor);
      terms.insert(terms.end(), read.index.begin(), read.index.end());
    }
    const auto late = scoring::ancestors(p.score->backward, terms);
    std::erase_if(tiles, [&](const PairTile& tile) { return tile.read < late.size() && late[tile.read]; });
  }
  return tiles;
}

}  // namespace cuda
}  // namespace foveal
