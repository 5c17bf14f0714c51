#include "cuda/tune/sm90.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace foveal::cuda {
namespace {

constexpr std::int64_t unlimited = std::int64_t{1} << 30;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// A tile in shared memory: chunks of 64 columns, 128 bytes a row.
std::size_t tile_bytes(int rows, std::int64_t columns) { return static_cast<std::size_t>(divide_up(columns, 64) * rows * 128); }

device::Divisor divisor(std::int64_t value) {
  unsigned shift = 0;
  while (std::int64_t{1} << shift < value) ++shift;
  const auto multiplier =
      ((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - static_cast<std::uint64_t>(value))) / static_cast<std::uint64_t>(value) +
      1;
  return {static_cast<int>(value), static_cast<unsigned>(multiplier), shift};
}

/// The time of the busiest CTA when sections of so many heads are interleaved.
double makespan(std::int64_t section_heads, const std::vector<double>& row_cost, std::int64_t all_heads, int grid, bool first_row_first,
                bool to_and_fro) {
  std::vector<double> busy(static_cast<std::size_t>(grid), 0.0);
  std::int64_t index = 0;
  for (std::int64_t first = 0; first < all_heads; first += section_heads) {
    const std::int64_t heads = std::min(section_heads, all_heads - first);
    for (std::size_t step = 0; step < row_cost.size(); ++step) {
      const double cost = row_cost[first_row_first ? step : row_cost.size() - 1 - step];
      for (std::int64_t head = 0; head < heads; ++head, ++index) {
        const std::int64_t round = index / grid, place = index % grid;
        busy[static_cast<std::size_t>(to_and_fro && (round & 1) ? grid - 1 - place : place)] += cost;
      }
    }
  }
  return *std::max_element(busy.begin(), busy.end());
}

/// Does the score need a special function for each pair?
bool evaluates_special_functions(const problem::Problem& p) {
  using scoring::Op;
  constexpr Op special[] = {Op::exp, Op::exp2, Op::log, Op::log2, Op::sqrt, Op::rsqrt, Op::tanh, Op::sigmoid};
  constexpr unsigned pair = scoring::depends_q | scoring::depends_kv;
  const scoring::Program& program = p.score->forward;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const unsigned depends = program.depends[i];
    if (((depends & scoring::depends_score) || (depends & pair) == pair) &&
        std::find(std::begin(special), std::end(special), program.code[i].op) != std::end(special))
      return true;
  }
  return false;
}

}  // namespace

const char* to_string(Sm90Tiles tiles) {
  switch (tiles) {
    case Sm90Tiles::all:
      return "all";
    case Sm90Tiles::causal:
      return "causal";
    case Sm90Tiles::band:
      return "band";
    case Sm90Tiles::list:
      return "list";
  }
  return "";
}

Sm90Mask sm90_mask(const problem::Problem& p) {
  Sm90Mask mask;
  mask.band = {-unlimited, unlimited};
  if (!p.has_mask()) return mask;
  const auto length = [&](std::int64_t n) { return p.varlen ? std::nullopt : std::optional(n); };
  const auto band = mask::find_band(p.score->mask, length(p.seqlen_q), length(p.seqlen_kv));
  if (!band) {
    mask.tiles = Sm90Tiles::list;
    return mask;
  }
  const std::int64_t shift = p.attention.q_offset - p.attention.kv_offset;
  mask.band = {std::clamp(band->low + shift, -unlimited, unlimited), std::clamp(band->high + shift, -unlimited, unlimited)};
  const bool low = mask.band.low > -p.seqlen_q, high = mask.band.high < p.seqlen_kv - 1;
  mask.tiles = low ? Sm90Tiles::band : high ? Sm90Tiles::causal : Sm90Tiles::all;
  return mask;
}

namespace {

/// A ring of tiles and its barriers.
std::size_t bytes_of_pairs(const std::vector<PairTile>& tiles, int stages, int rows, int columns) {
  if (tiles.empty()) return 0;
  std::size_t stage = 16;
  for (const PairTile& tile : tiles) stage += tile_bytes(rows, columns * tile.element_bytes / 2);
  return static_cast<std::size_t>(stages) * stage;
}

}  // namespace

std::vector<PairTile> Sm90ForwardConfig::pair_tiles(const problem::Problem& p) const {
  return pair_stages > 0 ? sm90_pair_tiles(p) : std::vector<PairTile>{};
}

std::size_t Sm90ForwardConfig::shared_bytes(const problem::Problem& p) const {
  const std::size_t tiles = static_cast<std::size_t>(query_stages) * tile_bytes(block_q(), p.head_dim) +
                            static_cast<std::size_t>(stages) * (tile_bytes(block_kv, p.head_dim) + tile_bytes(block_kv, p.head_dim_v));
  const auto barriers = static_cast<std::size_t>(16 * query_stages + 32 * stages + (helpers ? 32 : 0) + 16);  // and a word
  const std::size_t lines = 2 * 4 * sm90_line_values(p).count(block_q(), block_kv);
  return tiles + barriers + lines + bytes_of_pairs(pair_tiles(p), pair_stages, block_q(), block_kv) +
         static_cast<std::size_t>(p.has_mask() ? block_kv : 0);
}

std::string Sm90ForwardConfig::text() const {
  return base::join(block_q(), "x", block_kv, packed_heads > 1 ? base::join(" of ", packed_heads, " heads") : "", " stages ", stages,
                    query_stages > 1 ? " queries ahead" : "", take_turns ? " in turns" : "",
                    pair_stages > 0 ? base::join(", stages of pairs ", pair_stages) : "");
}

void Sm90ForwardConfig::set(jit::Constants& constants) const {
  constants.set("kBlockKv", block_kv)
      .set("kConsumers", consumers)
      .set("kStages", stages)
      .set("kQueryStages", query_stages)
      .set("kPairStages", pair_stages)
      .set("kProducerRegisters", consumers == 3 ? 32
                                 : helpers      ? 56
                                                : 24)
      .set("kConsumerRegisters", consumers == 3 ? 160
                                 : helpers      ? 224
                                                : 240)
      .set("kTakeTurns", take_turns)
      .set("kPackedHeads", packed_heads)
      .set("kSplit", split)
      .set("kOrdered", ordered);
}

namespace {

/// Reads whose terms other warps sum up.
int staged_reads(const problem::Problem& p) {
  int staged = 0;
  for (const scoring::TrainableRead& read : p.score->reads)
    staged += read.reduction == scoring::Reduction::row || read.reduction == scoring::Reduction::diagonal;
  return staged;
}

}  // namespace

std::vector<PairTile> Sm90BackwardConfig::pair_tiles(const problem::Problem& p) const {
  return pair_stages > 0 ? sm90_pair_tiles(p) : std::vector<PairTile>{};
}

std::size_t Sm90BackwardConfig::shared_bytes(const problem::Problem& p) const {
  // In a cluster keys have four chunks, one for each part of dq, and come with two of the other CTA's.
  const std::size_t keys = cluster_size() > 1 ? 6 * tile_bytes(block_kv, 64) : tile_bytes(block_kv, p.head_dim);
  const std::size_t tiles = keys + tile_bytes(block_kv, p.head_dim_v) +
                            static_cast<std::size_t>(stages) * (tile_bytes(block_q, p.head_dim) + tile_bytes(block_q, p.head_dim_v)) +
                            2 * tile_bytes(block_kv, block_q);
  const std::size_t stage = 4 * static_cast<std::size_t>(32 + block_kv / 2 * (block_q + 43));
  const auto barriers_and_statistics = static_cast<std::size_t>(80 + 48 * stages + 2 * stages * 4 * block_q);
  return tiles + barriers_and_statistics + bytes_of_pairs(pair_tiles(p), pair_stages, block_q, block_kv) +
         static_cast<std::size_t>(stages) * 4 * sm90_line_values(p).count(block_kv, block_q) +
         static_cast<std::size_t>(sm90_collects(p) ? staged_reads(p) : 0) * stage;
}

std::string Sm90BackwardConfig::text() const {
  return base::join(block_q, "x", task_keys(), " stages ", stages, cluster_size() > 1 ? " in clusters" : "",
                    pair_stages > 0 ? base::join(", stages of pairs ", pair_stages) : "");
}

void Sm90BackwardConfig::set(jit::Constants& constants) const {
  constants.set("kBlockQ", block_q)
      .set("kStages", stages)
      .set("kPairStages", pair_stages)
      .set("kHelperRegisters", helpers              ? 72
                               : cluster_size() > 1 ? 40
                                                    : 24)
      .set("kConsumerRegisters", helpers              ? 216
                                 : cluster_size() > 1 ? 232
                                                      : 240);
}

bool sm90_collects(const problem::Problem& p) {
  const std::int64_t dim = std::max(p.head_dim, p.head_dim_v);
  if (p.pass != Pass::backward || dim > 64) return false;
  const auto added_later = [&](const scoring::TrainableRead& read) {
    return gradient_storage(p, static_cast<std::size_t>(read.param)) == GradientStorage::added;
  };
  if (std::all_of(p.score->reads.begin(), p.score->reads.end(), added_later)) return false;
  const auto of_score = [&](scoring::ValueId id) {
    return (p.score->backward.depends[static_cast<std::size_t>(id)] & scoring::depends_score) != 0;
  };
  int early = 0;
  for (const scoring::TrainableRead& read : p.score->reads) {
    early += of_score(p.score->dscore) || of_score(read.factor);
    for (const scoring::ValueId index : read.index)
      if (of_score(index)) return false;
  }
  return early <= 2 && staged_reads(p) <= 3;  // what registers and shared memory hold
}

LineValues sm90_line_values(const problem::Problem& p) {
  const std::int64_t dim = std::max(p.head_dim, p.head_dim_v);
  const bool forward = p.pass == Pass::forward;
  const bool in_turns = !forward && p.attention.determinism == Determinism::reproducible;  // takes the warp that would evaluate them
  if (!p.has_score_mod() || dim > (forward ? 128 : 64) || in_turns) return {};
  return find_line_values(p, straight_values(p));
}

namespace {

/// Does the score read an element of a parameter for each pair? besides: reads that depend on these do not count, nor do those among
/// `tiles`.
bool reads_pairs(const problem::Problem& p, std::uint8_t besides = 0, const std::vector<PairTile>& tiles = {}) {
  const scoring::Program& program = p.pass == Pass::forward ? p.score->forward : p.score->backward;
  constexpr std::uint8_t pair = scoring::depends_q | scoring::depends_kv;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const auto same = [&](const PairTile& tile) { return tile.read == static_cast<scoring::ValueId>(i); };
    if (program.code[i].op == scoring::Op::read && (program.depends[i] & (pair | besides)) == pair && !program.along_diagonals[i] &&
        std::none_of(tiles.begin(), tiles.end(), same))
      return true;
  }
  return false;
}

/// Does a value of the pass's program come from another one?
bool comes_from(const scoring::Program& program, scoring::ValueId value, scoring::ValueId source) {
  std::vector<bool> reached(program.code.size(), false);
  reached[static_cast<std::size_t>(source)] = true;
  for (std::size_t i = static_cast<std::size_t>(source) + 1; i < program.code.size(); ++i) {
    const auto is = [&](scoring::ValueId id) { return id >= 0 && reached[static_cast<std::size_t>(id)]; };
    reached[i] = std::any_of(program.code[i].arg.begin(), program.code[i].arg.end(), is) ||
                 std::any_of(program.code[i].index.begin(), program.code[i].index.end(), is);
  }
  return reached[static_cast<std::size_t>(value)];
}

constexpr std::size_t shared_limit = 232448;  // of a CTA

}  // namespace

bool sm90_is_light(const problem::Problem& p) {
  const scoring::Program& program = p.pass == Pass::forward ? p.score->forward : p.score->backward;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const scoring::Op op = program.code[i].op;
    const bool light = op == scoring::Op::score || op == scoring::Op::add || op == scoring::Op::sub || op == scoring::Op::mul;
    if ((program.depends[i] & scoring::depends_score) != 0 && !light) return false;
  }
  return true;
}

std::vector<PairTile> sm90_pair_tiles(const problem::Problem& p) {
  if (std::max(p.head_dim, p.head_dim_v) > 128) return {};
  std::vector<PairTile> tiles = find_pair_tiles(p);
  const auto wide = [](const PairTile& tile) { return tile.element_bytes > 2; };
  if (tiles.size() > 1)
    tiles.erase(std::remove_if(tiles.begin(), tiles.end(), wide), tiles.end());  // shared memory has no room for these beside others
  // What a kernel that collects gradients evaluates after the probabilities finds no tiles any more.
  if (sm90_collects(p)) {
    const auto late = [&](const PairTile& tile) {
      const scoring::Program& program = p.score->backward;
      const auto uses = [&](const scoring::TrainableRead& read) { return comes_from(program, read.factor, tile.read); };
      return comes_from(program, p.score->dscore, tile.read) || std::any_of(p.score->reads.begin(), p.score->reads.end(), uses);
    };
    tiles.erase(std::remove_if(tiles.begin(), tiles.end(), late), tiles.end());
  }
  return tiles;
}

namespace {

/// Reads of one element per pair come as tiles where these fit.
Sm90ForwardConfig with_pair_tiles(const problem::Problem& p, const Sm90ForwardConfig& config) {
  if (sm90_pair_tiles(p).empty()) return config;
  for (const auto& [pair_stages, query_stages] : {std::pair{2, 2}, {2, 1}, {1, 2}, {1, 1}}) {
    Sm90ForwardConfig tried = config;
    tried.pair_stages = pair_stages;
    tried.query_stages = std::min(config.query_stages, query_stages);
    if (tried.shared_bytes(p) <= shared_limit) return tried;
  }
  return config;
}

/// Fewer queries than a tile has rows: keys and values are what takes time, so that they are read once for all heads that share them, into
/// as many buffers as there is room for.
std::optional<Sm90ForwardConfig> for_few_queries(const problem::Problem& p) {
  constexpr int most_rows = 128;
  if (p.has_score_mod() || p.attention.dropout.p > 0 || sm90_mask(p).tiles == Sm90Tiles::list) return std::nullopt;
  if (p.seqlen_q >= most_rows || p.group_size > most_rows || p.q.strides[2] * p.group_size >= std::int64_t{1} << 39) return std::nullopt;
  const std::int64_t rows = p.seqlen_q * p.group_size, dim = std::max(p.head_dim, p.head_dim_v);
  if (rows > 64 && p.group_size == 1) return std::nullopt;
  const int consumers = rows <= 64 ? 1 : 2;
  const int block_kv = dim <= 128 ? 128 : dim <= 192 ? 96 : consumers == 1 ? 80 : 64;
  Sm90ForwardConfig config{block_kv, consumers, 4, 2, consumers > 1, dim > 80};
  config.packed_heads = static_cast<int>(p.group_size);
  while (config.shared_bytes(p) > shared_limit) {
    if (config.stages > 2) {
      --config.stages;
    } else {
      config.query_stages = 1;
    }
  }
  return config;
}

// Chosen by measurement on an H200 (docs/gpu-performance.md).
std::vector<Sm90ForwardConfig> forward_candidates(const problem::Problem& p) {
  const std::int64_t dim = std::max(p.head_dim, p.head_dim_v);
  const bool plain = !p.has_score_mod() && sm90_mask(p).tiles != Sm90Tiles::list && p.attention.dropout.p == 0;
  const bool causal = sm90_mask(p).tiles != Sm90Tiles::all;
  const bool helpers = !sm90_line_values(p).empty();
  const Sm90ForwardConfig two{128, 2, 2, 2, true, false, helpers}, three{128, 3, 2, 2, true, false, helpers};
  if (dim <= 64) {
    const bool bf16 = p.dtype == DType::bf16;
    if (sm90_mask(p).tiles == Sm90Tiles::list || p.attention.dropout.p > 0 || reads_pairs(p, 0, sm90_pair_tiles(p))) return {two};
    const std::vector<PairTile> tiles = sm90_pair_tiles(p);
    if (tiles.size() > 1 || (tiles.size() == 1 && tiles[0].element_bytes > 2)) return {two};  // shared memory is full
    // Fewer and wider tiles, fewer waits for them.
    const Sm90ForwardConfig wide{160, 2, 2, 2, true, false, helpers};
    if (bf16 && is_capped(p)) return {two};
    // The unit for special functions binds: three warpgroups keep it busy, and registers last for a narrow tile.
    // Not for what is the same along lines of a tile, which another warp evaluates.
    if (!helpers && evaluates_special_functions(p)) return {{112, 3, 2, 2, true, false}, two};
    if (!sm90_is_light(p)) return {two};
    if ((causal && p.seqlen_q <= 1024) || p.seqlen_q <= 128) return {two, three};
    if (bf16 && is_sum(p) && sm90_pair_tiles(p).empty()) return {wide, three};
    return {three, two};
  }
  if (dim <= 80 && plain) return {{112, 3, 2, 2, true, false}};
  if (dim <= 96 && plain) return {{144, 2, 2, 2, true, true}};
  if (dim <= 128) {
    const Sm90ForwardConfig narrow{128, 2, 2, 2, true, true, helpers}, wide{160, 2, 2, 2, true, true};
    if (plain && p.seqlen_kv >= (causal ? 8192 : 4096)) return {wide, narrow};
    return plain ? std::vector{narrow, wide} : std::vector{narrow};
  }
  if (dim <= 192) {
    if (p.head_dim_v <= 128) return {{128, 2, 2, 1, true, true}};
    return {{96, 2, 2, 1, false, true}};
  }
  return {{plain ? 80 : 64, 2, 2, 1, false, true}};
}

}  // namespace

std::vector<Sm90ForwardConfig> sm90_forward_candidates(const problem::Problem& p) {
  if (const auto config = for_few_queries(p)) return {*config};
  std::vector<Sm90ForwardConfig> candidates = forward_candidates(p);
  for (Sm90ForwardConfig& candidate : candidates) candidate = with_pair_tiles(p, candidate);
  return candidates;
}

device::Divisor sm90_forward_splits(const problem::Problem& p, const Sm90ForwardConfig& config, int multiprocessors) {
  if (!for_few_queries(p)) return divisor(1);
  const auto rows = sm90_row_tiles(sm90_mask(p), p.seqlen_q, config.queries(), p.seqlen_kv, config.block_kv, false);
  std::int64_t tiles = 0;
  for (const Sm90TileRange& row : rows) tiles = std::max(tiles, row.end - row.begin);
  const std::int64_t tasks = p.batch * p.heads_q / config.packed_heads * static_cast<std::int64_t>(rows.size());
  // In the time of a tile while all multiprocessors read. Half of them take all that memory gives.
  constexpr double alone = 0.45, ends = 1, merging = 2.5;
  const auto time = [&](std::int64_t splits) {
    const double busy = std::min(1.0, static_cast<double>(tasks * splits) / multiprocessors);
    const double task = std::max(alone, busy) * static_cast<double>(divide_up(tiles, splits)) + ends;
    return static_cast<double>(divide_up(tasks * splits, multiprocessors)) * task + (splits > 1 ? merging : 0);
  };
  int best = 1;
  constexpr int most = 128;
  for (int splits = 2; splits <= std::min<std::int64_t>(most, tiles); ++splits)
    if (time(splits) < time(best)) best = splits;
  return divisor(best);
}

std::vector<Sm90BackwardConfig> sm90_backward_candidates(const problem::Problem& p) {
  const std::int64_t dim = std::max(p.head_dim, p.head_dim_v);
  const bool bare = sm90_mask(p).tiles != Sm90Tiles::list && p.attention.dropout.p == 0 && !p.varlen;
  const bool plain = bare && !p.has_score_mod() && p.score->reads.empty();
  const bool helpers = (sm90_collects(p) && staged_reads(p) > 0) || !sm90_line_values(p).empty();
  if (p.head_dim > 128) return {{64, 64, 2, false}};
  // Registers hold of each pair what the plain pass holds.
  const bool only_sums = std::all_of(p.score->reads.begin(), p.score->reads.end(), [&](const scoring::TrainableRead& read) {
    const bool of_score = (p.score->backward.depends[static_cast<std::size_t>(read.factor)] & scoring::depends_score) != 0;
    return !of_score && (read.reduction == scoring::Reduction::uniform || read.reduction == scoring::Reduction::column);
  });
  const bool straight = bare && sm90_is_light(p) && only_sums && !helpers && !reads_pairs(p);
  if (dim <= 64 && (plain || straight)) return {{128, 128, 2, false}, {64, 128, 2, false}};
  std::vector<Sm90BackwardConfig> candidates;
  const auto add_fitting = [&](const Sm90BackwardConfig& config) {
    if (config.shared_bytes(p) <= shared_limit) candidates.push_back(config);
  };
  if (const std::vector<PairTile> tiles = sm90_pair_tiles(p); !tiles.empty()) {
    const bool adds = std::none_of(tiles.begin(), tiles.end(), [&](const PairTile& tile) {  // a slope for each pair needs registers
      return comes_from(p.score->backward, p.score->dscore, tile.read);
    });
    const bool light = bare && adds && !helpers && !sm90_collects(p) && sm90_is_light(p) && !reads_pairs(p, 0, tiles);
    for (const int pair_stages : {2, 1})
      if (dim <= 64 && light && candidates.empty()) add_fitting({128, 128, 2, false, pair_stages});
    const bool roomy = helpers || dim <= 64;  // the warp that loads has more to do
    for (const int pair_stages : {2, 1})
      if (candidates.empty() || pair_stages == 2) add_fitting({64, 128, 2, roomy, pair_stages});
  }
  if (candidates.empty()) candidates.push_back({64, 128, 2, helpers});
  return candidates;
}

bool sm90_sequences_share_pairs(const problem::Problem& p) { return p.batch > 1 && reads_pairs(p, scoring::depends_batch); }

std::vector<Sm90TileRange> sm90_row_tiles(const Sm90Mask& mask, std::int64_t rows_length, int rows_block, std::int64_t length, int block,
                                          bool transposed) {
  std::vector<Sm90TileRange> tiles;
  for (std::int64_t begin = 0; begin < rows_length; begin += rows_block) {
    const std::int64_t end = std::min(begin + rows_block, rows_length);
    const std::int64_t low = transposed ? -mask.band.high : mask.band.low, high = transposed ? -mask.band.low : mask.band.high;
    const std::int64_t first = std::max<std::int64_t>(0, begin + low), last = std::min(length, end + high);
    tiles.push_back({first / block, last > first ? divide_up(last, block) : first / block});
  }
  return tiles;
}

std::vector<double> sm90_row_cost(const Sm90Mask& mask, std::int64_t rows_length, int rows_block, std::int64_t length, int block,
                                  bool transposed) {
  constexpr double ends = 0.7;  // of a tile's time
  std::vector<double> cost;
  for (const Sm90TileRange& tiles : sm90_row_tiles(mask, rows_length, rows_block, length, block, transposed))
    cost.push_back(ends + static_cast<double>(tiles.end - tiles.begin));
  return cost;
}

Sm90Dealing sm90_deal(const std::vector<double>& row_cost, std::int64_t heads, std::int64_t batch, std::int64_t head_bytes,
                      std::size_t l2_bytes, double spilling_cost, int multiprocessors, bool first_row_first, bool in_turns,
                      bool sequences_inside) {
  const std::int64_t all_heads = heads * batch, rows = static_cast<std::int64_t>(row_cost.size()), tasks = all_heads * rows;
  const auto order = [&](std::int64_t section_heads) {
    const std::int64_t last = all_heads % section_heads;
    return device::TaskOrder{static_cast<int>(tasks),      static_cast<int>(rows),
                             first_row_first ? 1 : 0,      in_turns ? 0 : 1,
                             sequences_inside ? 1 : 0,     divisor(sequences_inside ? batch : heads),
                             divisor(section_heads),       divisor(last == 0 ? section_heads : last),
                             divisor(section_heads * rows)};
  };
  const bool even = *std::min_element(row_cost.begin(), row_cost.end()) == *std::max_element(row_cost.begin(), row_cost.end());
  constexpr int most_rows_in_turn = 4;  // of one head that run at a time
  const std::int64_t wanted = std::max<std::int64_t>(in_turns ? multiprocessors / most_rows_in_turn : 1, sequences_inside ? batch : 1);
  const std::int64_t least = std::min(wanted, all_heads);
  const int grid = static_cast<int>(std::min<std::int64_t>(multiprocessors, tasks));
  constexpr std::int64_t most_tasks = 1 << 16;  // more need no play: they even out
  const auto time_of = [&](std::int64_t section_heads) {
    if (tasks <= most_tasks) return makespan(section_heads, row_cost, all_heads, grid, first_row_first, !in_turns);
    return std::accumulate(row_cost.begin(), row_cost.end(), 0.0) * static_cast<double>(all_heads) / grid;
  };
  if (even)  // one head after the other: its keys and values stay in L2
    return {order(least), static_cast<double>(divide_up(tasks, grid)) * row_cost.front()};

  const std::int64_t fitting =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(l2_bytes) * 6 / 10 / std::max<std::int64_t>(1, head_bytes));
  const auto heads_of_rounds = [&](std::int64_t rounds) { return divide_up(rounds * grid, rows); };
  double best_time = 0;
  std::int64_t best = least;
  for (std::int64_t section : {fitting, heads_of_rounds(1), heads_of_rounds(2), heads_of_rounds(3), heads_of_rounds(4), heads_of_rounds(6),
                               heads_of_rounds(8), all_heads}) {
    section = std::clamp(section, least, all_heads);
    const double doublings = std::log2(std::max(1.0, static_cast<double>(section) / static_cast<double>(fitting)));
    const double time = (1 + spilling_cost * doublings) * time_of(section);
    if (best_time == 0 || time < best_time) {
      best_time = time;
      best = section;
    }
  }
  return {order(best), best_time};
}

Sm90SplitDealing sm90_deal_splits(const std::vector<Sm90TileRange>& rows, std::int64_t heads, std::int64_t batch, std::int64_t head_bytes,
                                  std::size_t l2_bytes, double spilling_cost, int multiprocessors) {
  constexpr double start = 0.1;  // of a tile's time
  std::int64_t most = 1;
  for (const Sm90TileRange& row : rows) most = std::max(most, row.end - row.begin);
  const std::int64_t enough = 64 * multiprocessors;  // tasks: more even out anyway
  most = std::clamp<std::int64_t>(enough / (static_cast<std::int64_t>(rows.size()) * heads * batch), 1, std::min<std::int64_t>(most, 16));
  Sm90SplitDealing best{};
  for (int splits = 1; splits <= most; ++splits) {
    const auto before = [&](std::int64_t tile, int split) { return (tile + splits - 1 - split) / splits; };  // tiles of the split
    std::vector<double> cost;
    for (const Sm90TileRange& row : rows)
      for (int split = 0; split < splits; ++split)
        cost.push_back(start + static_cast<double>(before(row.end, split) - before(row.begin, split)));
    const Sm90Dealing dealing = sm90_deal(cost, heads, batch, head_bytes, l2_bytes, spilling_cost, multiprocessors, false);
    if (splits == 1 || dealing.time < best.dealing.time) best = {divisor(splits), dealing};
  }
  return best;
}

}  // namespace foveal::cuda
