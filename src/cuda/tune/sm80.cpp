#include "cuda/device/layout/sm80.cuh"

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/check.h"
#include "base/divide.h"
#include "cuda/tune/choice.h"
#include "cuda/tune/sm80.h"

namespace foveal::cuda {
namespace {

/// What the choice depends on.
struct Sm80Facts {
  int bits;  ///< of an element
  int dim;   ///< the larger head dim, in steps of 16
};

constexpr const char* ahead = "two stages: the next tile is loaded while this one is multiplied";
constexpr const char* one_stage = "one stage leaves shared memory for the tile";
constexpr const char* together = "two CTAs on a multiprocessor hide the waits of each other";
constexpr const char* wide = "two row tiles of a warp share what it loads of keys, and two CTAs hide the waits of each other";
constexpr const char* split = "warps split the columns of the sums, which the registers of one do not hold";
constexpr const char* split_ahead = "warps split the columns of the sums, which the registers of one do not hold; two stages";

constexpr const char* compiled = "registers and shared memory: bench/results/architectures.jsonl";
constexpr const char* not_timed = "not timed; compiled in tests/cuda/sm80_test.cpp";

/// A row of a table. The first one for the bits of an element and the head dim is taken.
struct Sm80Row {
  int bits;
  int max_dim = std::numeric_limits<int>::max();
  std::vector<device::PortableConfig> configs;  ///< in the order in which they are tried; their warps follow from the tile
  const char* why;
  const char* measured = not_timed;  ///< where the figures are
};

const std::vector<Sm80Row>& forward_table() {
  static const std::vector<Sm80Row> rows = {
      {.bits = 64, .max_dim = 64, .configs = {{.block_q = 64, .block_kv = 32, .stages = 2}, {.block_q = 32, .block_kv = 32}}, .why = ahead},
      {.bits = 64, .max_dim = 128, .configs = {{.block_q = 32, .block_kv = 32}, {.block_q = 16, .block_kv = 16}}, .why = one_stage},
      {.bits = 64, .max_dim = 256, .configs = {{.block_q = 16, .block_kv = 16}}, .why = one_stage},
      {.bits = 64, .configs = {{.block_q = 16, .block_kv = 16, .column_split = 4}}, .why = split},
      {.bits = 32, .max_dim = 64, .configs = {{.block_q = 64, .block_kv = 32, .stages = 2, .ctas = 2}}, .why = together},
      {.bits = 32,
       .max_dim = 128,
       .configs = {{.block_q = 64, .block_kv = 32, .stages = 2}, {.block_q = 64, .block_kv = 32}},
       .why = ahead},
      {.bits = 32, .max_dim = 256, .configs = {{.block_q = 64, .block_kv = 32}, {.block_q = 32, .block_kv = 16}}, .why = one_stage},
      {.bits = 32,
       .configs = {{.block_q = 32, .block_kv = 16, .column_split = 2}, {.block_q = 16, .block_kv = 16, .column_split = 2}},
       .why = split},
      {.bits = 16,
       .max_dim = 64,
       .configs = {{.block_q = 128, .block_kv = 64, .row_tiles = 2, .stages = 2, .ctas = 2},
                   {.block_q = 64, .block_kv = 64, .stages = 2, .ctas = 2}},
       .why = wide},
      {.bits = 16,
       .max_dim = 128,
       .configs = {{.block_q = 64, .block_kv = 64, .stages = 2, .ctas = 2}, {.block_q = 64, .block_kv = 32, .stages = 2, .ctas = 2}},
       .why = together,
       .measured = compiled},
      {.bits = 16,
       .max_dim = 256,
       .configs = {{.block_q = 64, .block_kv = 32, .stages = 2, .ctas = 2},
                   {.block_q = 64, .block_kv = 32},
                   {.block_q = 64, .block_kv = 16}},
       .why = together},
      {.bits = 16,
       .configs = {{.block_q = 64, .block_kv = 32, .column_split = 2}, {.block_q = 32, .block_kv = 16, .column_split = 2}},
       .why = split},
  };
  return rows;
}

const std::vector<Sm80Row>& dq_table() {
  static const std::vector<Sm80Row> rows = {
      {.bits = 64, .max_dim = 64, .configs = {{.block_q = 32, .block_kv = 32}}, .why = one_stage},
      {.bits = 64, .max_dim = 256, .configs = {{.block_q = 16, .block_kv = 16}}, .why = one_stage},
      {.bits = 64, .configs = {{.block_q = 16, .block_kv = 16, .column_split = 4}}, .why = split},
      {.bits = 32, .max_dim = 64, .configs = {{.block_q = 64, .block_kv = 32, .stages = 2}, {.block_q = 32, .block_kv = 32}}, .why = ahead},
      {.bits = 32,
       .max_dim = 128,
       .configs = {{.block_q = 64, .block_kv = 32, .stages = 2}, {.block_q = 32, .block_kv = 32}},
       .why = ahead},
      {.bits = 32, .max_dim = 256, .configs = {{.block_q = 32, .block_kv = 32}, {.block_q = 16, .block_kv = 16}}, .why = one_stage},
      {.bits = 32, .configs = {{.block_q = 16, .block_kv = 16, .column_split = 2}}, .why = split},
      {.bits = 16,
       .max_dim = 128,
       .configs = {{.block_q = 64, .block_kv = 64, .stages = 2, .ctas = 2}, {.block_q = 64, .block_kv = 32, .stages = 2, .ctas = 2}},
       .why = together,
       .measured = compiled},
      {.bits = 16,
       .max_dim = 192,
       .configs = {{.block_q = 64, .block_kv = 32, .stages = 2}, {.block_q = 64, .block_kv = 16}},
       .why = ahead},
      {.bits = 16,
       .max_dim = 256,
       .configs = {{.block_q = 64, .block_kv = 16, .stages = 2}, {.block_q = 64, .block_kv = 16}},
       .why = ahead},
      {.bits = 16,
       .configs = {{.block_q = 32, .block_kv = 16, .column_split = 2}, {.block_q = 16, .block_kv = 16, .column_split = 2}},
       .why = split},
  };
  return rows;
}

const std::vector<Sm80Row>& dkdv_table() {
  static const std::vector<Sm80Row> rows = {
      {.bits = 64, .max_dim = 64, .configs = {{.block_q = 16, .block_kv = 32, .column_split = 2}}, .why = split},
      {.bits = 64, .configs = {{.block_q = 16, .block_kv = 16, .column_split = 4}}, .why = split},
      {.bits = 32,
       .max_dim = 64,
       .configs = {{.block_q = 32, .block_kv = 64, .stages = 2}, {.block_q = 32, .block_kv = 32, .column_split = 2}},
       .why = ahead},
      {.bits = 32,
       .max_dim = 128,
       .configs = {{.block_q = 32, .block_kv = 64, .stages = 2, .column_split = 2},
                   {.block_q = 16, .block_kv = 32, .stages = 2, .column_split = 2}},
       .why = split_ahead},
      {.bits = 32,
       .max_dim = 256,
       .configs = {{.block_q = 16, .block_kv = 32, .column_split = 2}, {.block_q = 16, .block_kv = 16, .column_split = 2}},
       .why = split},
      {.bits = 32, .configs = {{.block_q = 16, .block_kv = 16, .column_split = 4}}, .why = split},
      {.bits = 16,
       .max_dim = 64,
       .configs = {{.block_q = 64, .block_kv = 64, .stages = 2, .ctas = 2}},
       .why = together,
       .measured = compiled},
      {.bits = 16, .max_dim = 96, .configs = {{.block_q = 32, .block_kv = 64, .stages = 2, .ctas = 2}}, .why = together},
      {.bits = 16,
       .max_dim = 128,
       .configs = {{.block_q = 64, .block_kv = 64, .stages = 2, .column_split = 2},
                   {.block_q = 32, .block_kv = 64, .stages = 2, .column_split = 2}},
       .why = split_ahead},
      {.bits = 16,
       .max_dim = 256,
       .configs = {{.block_q = 32, .block_kv = 64, .stages = 2, .column_split = 2},
                   {.block_q = 32, .block_kv = 32, .column_split = 2},
                   {.block_q = 16, .block_kv = 32, .column_split = 2}},
       .why = split},
      {.bits = 16,
       .configs = {{.block_q = 16, .block_kv = 32, .column_split = 4}, {.block_q = 16, .block_kv = 16, .column_split = 4}},
       .why = split},
  };
  return rows;
}

Sm80Facts sm80_facts(const problem::Problem& p) {
  return {.bits = static_cast<int>(8 * size_of(p.dtype)), .dim = static_cast<int>(base::round_up(std::max(p.head_dim, p.head_dim_v), 16))};
}

const std::vector<Sm80Row>& table_of(Sm80Kernel kernel) {
  return kernel == Sm80Kernel::forward ? forward_table() : kernel == Sm80Kernel::dkdv ? dkdv_table() : dq_table();
}

/// The rows of the tile whose sums warps hold: 16 * row_tiles rows each, or column_split warps a share of the columns each.
int owned_rows(Sm80Kernel kernel, const Sm80Config& config) { return kernel == Sm80Kernel::dkdv ? config.block_kv : config.block_q; }

/// The configurations of the first row that applies, also those that do not fit shared memory.
std::vector<Chosen<Sm80Config>> chosen_for(const Sm80Facts& facts, Sm80Kernel kernel) {
  const std::vector<Sm80Row>& rows = table_of(kernel);
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const Sm80Row& r) { return r.bits == facts.bits && facts.dim <= r.max_dim; });
  std::vector<Chosen<Sm80Config>> chosen;
  for (Sm80Config config : row->configs) {
    config.warps = owned_rows(kernel, config) * config.column_split / (16 * config.row_tiles);
    chosen.push_back({config, base::join(row->why, " (", row->measured, ")")});
  }
  return chosen;
}

/// The candidates of a kernel, best first, and why.
std::vector<Chosen<Sm80Config>> chosen_for(const problem::Problem& p, Sm80Kernel kernel) {
  const Sm80Facts facts = sm80_facts(p);
  std::vector<Chosen<Sm80Config>> chosen = chosen_for(facts, kernel);
  if (kernel == Sm80Kernel::forward || kernel == Sm80Kernel::dq || kernel == Sm80Kernel::dkdv) return chosen;
  // The same tiles with whole rows for each warp.
  for (auto& [config, why] : chosen) {
    if (config.column_split > 1) why = base::join("whole rows for each warp (", not_timed, ")");
    config.warps /= config.column_split, config.column_split = 1;
  }
  if (kernel == Sm80Kernel::measure) return chosen;
  if (kernel == Sm80Kernel::reads) {
    if (facts.bits == 16 && facts.dim <= 128)
      chosen.insert(chosen.begin(), {device::PortableConfig{.block_q = 128, .block_kv = 64, .warps = 4, .row_tiles = 2, .stages = 2},
                                     base::join("no sum of dq takes registers: a wide tile (", not_timed, ")")});
    return chosen;
  }
  const std::string alone = base::join("nothing is loaded ahead: other CTAs fill the wait (", not_timed, ")");
  for (auto& [config, why] : chosen) config.stages = 1, config.ctas = 1, why = alone;
  if (facts.bits == 16 && facts.dim <= 64)
    chosen.insert(chosen.begin(), {device::PortableConfig{.block_q = 64, .block_kv = 32, .warps = 4, .ctas = 4}, alone});
  return chosen;
}

/// Why a kernel cannot run a problem in this configuration; nullopt if it can.
std::optional<std::string> illegal(const problem::Problem& p, Sm80Kernel kernel, const Sm80Config& config, std::size_t shared_bytes) {
  for (const int size : {config.block_q, config.block_kv})
    if (size < 16 || size > 128 || size % 16 != 0) return "block_q and block_kv must be multiples of 16 from 16 to 128";
  if (config.warps < 1 || config.warps > 8 || config.row_tiles < 1 || config.row_tiles > 2 || config.stages < 1 || config.stages > 2 ||
      config.column_split < 1 || config.column_split > 4 || config.ctas < 1 || config.ctas > 4)
    return "warps must be 1 to 8, row_tiles 1 or 2, stages 1 or 2, column_split and ctas 1 to 4";
  if (owned_rows(kernel, config) * config.column_split != 16 * config.row_tiles * config.warps)
    return "warps must be the rows of the tile times column_split, divided by 16 * row_tiles";
  const std::size_t needed = config.shared_bytes(p, kernel);
  if (needed > shared_bytes) return base::join(needed, " bytes of shared memory exceed ", shared_bytes);
  return std::nullopt;
}

}  // namespace

std::string Sm80Config::text() const {
  return base::join(block_q, "x", block_kv, " warps ", warps, " stages ", stages,
                    column_split > 1 ? base::join(" split ", column_split) : "");
}

const char* sm80_stem(Sm80Kernel kernel) {
  static constexpr const char* stems[] = {"forward_sm80", "dq_sm80", "dkdv_sm80", "two_scan_sm80", "dq_sm80", "pairs_sm80", "measure_sm80"};
  static_assert(std::size(stems) == static_cast<std::size_t>(Sm80Kernel::measure) + 1);
  return stems[static_cast<std::size_t>(kernel)];
}

std::size_t Sm80Config::shared_bytes(const problem::Problem& p, Sm80Kernel kernel) const {
  const auto in_lines = [](const scoring::TrainableRead& read) {
    return read.over == scoring::Varies::column || read.over == scoring::Varies::diagonal;
  };
  const device::Sm80Shape shape{
      .block_q = block_q,
      .block_kv = block_kv,
      .dim = device::padded_dim(static_cast<int>(p.head_dim), column_split),
      .dim_v = device::padded_dim(static_cast<int>(p.head_dim_v), column_split),
      .stages = stages,
      .warps = warps,
      .element_bytes = static_cast<int>(size_of(p.dtype)),
      .real_bytes = p.dtype == DType::f64 ? 8 : 4,
      .has_mask = p.has_mask(),
      .stages_terms = column_split == 1 && p.score && std::any_of(p.score->reads.begin(), p.score->reads.end(), in_lines)};
  const auto bytes = [&] {
    switch (kernel) {
      case Sm80Kernel::forward:
        return device::ForwardSm80Layout(shape, true).bytes;
      case Sm80Kernel::measure:
        return device::ForwardSm80Layout(shape, false).bytes;
      case Sm80Kernel::dkdv:
        return device::DkdvSm80Layout(shape).bytes;
      case Sm80Kernel::two_scan:
        return device::two_scan_bytes(shape);
      case Sm80Kernel::pairs:
        return device::PairsSm80Layout(shape).bytes;
      default:
        return device::DqSm80Layout(shape).bytes;  // dq, reads
    }
  };
  return static_cast<std::size_t>(bytes());
}

void Sm80Config::set(jit::Constants& constants) const { constants.set_struct("kConfig", "PortableConfig", "sm80_config.cuh", *this); }

std::vector<Sm80Config> sm80_candidates(const problem::Problem& p, Sm80Kernel kernel) { return configs_of(chosen_for(p, kernel)); }

const char* sm80_family(Sm80Kernel kernel) {
  return kernel == Sm80Kernel::forward ? "sm80.forward"
         : kernel == Sm80Kernel::dq    ? "sm80.dq"
         : kernel == Sm80Kernel::dkdv  ? "sm80.dkdv"
                                       : "";
}

std::vector<Sm80Config> sm80_space(const problem::Problem& p, Sm80Kernel kernel, std::size_t shared_bytes) {
  std::vector<Sm80Config> space;
  const auto add = [&](const Sm80Config& config) {
    if (!illegal(p, kernel, config, shared_bytes)) add_new(config, space);
  };
  const std::vector<Sm80Config> candidates = sm80_candidates(p, kernel);
  for (const Sm80Config& config : candidates) add(config);
  Sm80Facts facts = sm80_facts(p);
  for (facts.dim = 16; facts.dim <= sm80_max_head_dim; facts.dim += 16) {
    for (Sm80Config config : configs_of(chosen_for(facts, kernel))) {
      if (config.column_split != candidates.front().column_split) continue;
      for (config.stages = 1; config.stages <= 2; ++config.stages)
        for (config.ctas = 1; config.ctas <= 2; ++config.ctas) add(config);
    }
  }
  return space;
}

std::optional<Chosen<Sm80Config>> sm80_choice(const problem::Problem& p, Sm80Kernel kernel, const Sm80Device& device) {
  std::vector<Chosen<Sm80Config>> chosen = chosen_for(p, kernel);
  std::erase_if(chosen, [&](const auto& one) { return one.config.shared_bytes(p, kernel) > device.shared_bytes; });
  const auto refuses = [&](const Sm80Config& config) { return illegal(p, kernel, config, device.shared_bytes); };
  return choice(
      p, device.name, sm80_family(kernel), std::move(chosen), [](const Sm80Config& config) { return std::optional(config); }, refuses);
}

}  // namespace foveal::cuda
