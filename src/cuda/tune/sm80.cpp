#include "cuda/tune/sm80.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/divide.h"
#include "cuda/device/layout/sm80.cuh"
#include "cuda/tune/tuned.h"

namespace foveal::cuda {
namespace {

int round_up(std::int64_t value, int step) { return static_cast<int>(base::round_up(value, step)); }

/// For elements of so many bits and head dims up to dim: the configurations, best first.
struct Sm80Row {
  int bits;
  std::int64_t dim;
  std::vector<Sm80Config> configs;
};
using Table = std::vector<Sm80Row>;

const Table& forward_table() {
  static const Table table = {
      {.bits = 64,
       .dim = 64,
       .configs = {{.block_q = 64, .block_kv = 32, .warps = 4, .stages = 2}, {.block_q = 32, .block_kv = 32, .warps = 2}}},
      {.bits = 64, .dim = 128, .configs = {{.block_q = 32, .block_kv = 32, .warps = 2}, {.block_q = 16, .block_kv = 16, .warps = 1}}},
      {.bits = 64, .dim = 256, .configs = {{.block_q = 16, .block_kv = 16, .warps = 1}}},
      {.bits = 64, .dim = sm80_max_head_dim, .configs = {{.block_q = 16, .block_kv = 16, .warps = 4, .column_split = 4}}},
      {.bits = 32, .dim = 64, .configs = {{.block_q = 64, .block_kv = 32, .warps = 4, .stages = 2, .blocks = 2}}},
      {.bits = 32,
       .dim = 128,
       .configs = {{.block_q = 64, .block_kv = 32, .warps = 4, .stages = 2}, {.block_q = 64, .block_kv = 32, .warps = 4}}},
      {.bits = 32, .dim = 256, .configs = {{.block_q = 64, .block_kv = 32, .warps = 4}, {.block_q = 32, .block_kv = 16, .warps = 2}}},
      {.bits = 32,
       .dim = sm80_max_head_dim,
       .configs = {{.block_q = 32, .block_kv = 16, .warps = 4, .column_split = 2},
                   {.block_q = 16, .block_kv = 16, .warps = 2, .column_split = 2}}},
      {.bits = 16,
       .dim = 64,
       .configs = {{.block_q = 128, .block_kv = 64, .warps = 4, .row_tiles = 2, .stages = 2, .blocks = 2},
                   {.block_q = 64, .block_kv = 64, .warps = 4, .stages = 2, .blocks = 2}}},
      {.bits = 16,
       .dim = 128,
       .configs = {{.block_q = 64, .block_kv = 64, .warps = 4, .stages = 2, .blocks = 2},
                   {.block_q = 64, .block_kv = 32, .warps = 4, .stages = 2, .blocks = 2}}},
      {.bits = 16,
       .dim = 256,
       .configs = {{.block_q = 64, .block_kv = 32, .warps = 4, .stages = 2, .blocks = 2},
                   {.block_q = 64, .block_kv = 32, .warps = 4},
                   {.block_q = 64, .block_kv = 16, .warps = 4}}},
      {.bits = 16,
       .dim = sm80_max_head_dim,
       .configs = {{.block_q = 64, .block_kv = 32, .warps = 8, .column_split = 2},
                   {.block_q = 32, .block_kv = 16, .warps = 4, .column_split = 2}}},
  };
  return table;
}

const Table& dq_table() {
  static const Table table = {
      {.bits = 64, .dim = 64, .configs = {{.block_q = 32, .block_kv = 32, .warps = 2}}},
      {.bits = 64, .dim = 256, .configs = {{.block_q = 16, .block_kv = 16, .warps = 1}}},
      {.bits = 64, .dim = sm80_max_head_dim, .configs = {{.block_q = 16, .block_kv = 16, .warps = 4, .column_split = 4}}},
      {.bits = 32,
       .dim = 64,
       .configs = {{.block_q = 64, .block_kv = 32, .warps = 4, .stages = 2}, {.block_q = 32, .block_kv = 32, .warps = 2}}},
      {.bits = 32,
       .dim = 128,
       .configs = {{.block_q = 64, .block_kv = 32, .warps = 4, .stages = 2}, {.block_q = 32, .block_kv = 32, .warps = 2}}},
      {.bits = 32, .dim = 256, .configs = {{.block_q = 32, .block_kv = 32, .warps = 2}, {.block_q = 16, .block_kv = 16, .warps = 1}}},
      {.bits = 32, .dim = sm80_max_head_dim, .configs = {{.block_q = 16, .block_kv = 16, .warps = 2, .column_split = 2}}},
      {.bits = 16,
       .dim = 128,
       .configs = {{.block_q = 64, .block_kv = 64, .warps = 4, .stages = 2, .blocks = 2},
                   {.block_q = 64, .block_kv = 32, .warps = 4, .stages = 2, .blocks = 2}}},
      {.bits = 16,
       .dim = 192,
       .configs = {{.block_q = 64, .block_kv = 32, .warps = 4, .stages = 2}, {.block_q = 64, .block_kv = 16, .warps = 4}}},
      {.bits = 16,
       .dim = 256,
       .configs = {{.block_q = 64, .block_kv = 16, .warps = 4, .stages = 2}, {.block_q = 64, .block_kv = 16, .warps = 4}}},
      {.bits = 16,
       .dim = sm80_max_head_dim,
       .configs = {{.block_q = 32, .block_kv = 16, .warps = 4, .column_split = 2},
                   {.block_q = 16, .block_kv = 16, .warps = 2, .column_split = 2}}},
  };
  return table;
}

const Table& dkdv_table() {
  static const Table table = {
      {.bits = 64, .dim = 64, .configs = {{.block_q = 16, .block_kv = 32, .warps = 4, .column_split = 2}}},
      {.bits = 64, .dim = sm80_max_head_dim, .configs = {{.block_q = 16, .block_kv = 16, .warps = 4, .column_split = 4}}},
      {.bits = 32,
       .dim = 64,
       .configs = {{.block_q = 32, .block_kv = 64, .warps = 4, .stages = 2},
                   {.block_q = 32, .block_kv = 32, .warps = 4, .column_split = 2}}},
      {.bits = 32,
       .dim = 128,
       .configs = {{.block_q = 32, .block_kv = 64, .warps = 8, .stages = 2, .column_split = 2},
                   {.block_q = 16, .block_kv = 32, .warps = 4, .stages = 2, .column_split = 2}}},
      {.bits = 32,
       .dim = 256,
       .configs = {{.block_q = 16, .block_kv = 32, .warps = 4, .column_split = 2},
                   {.block_q = 16, .block_kv = 16, .warps = 2, .column_split = 2}}},
      {.bits = 32, .dim = sm80_max_head_dim, .configs = {{.block_q = 16, .block_kv = 16, .warps = 4, .column_split = 4}}},
      {.bits = 16, .dim = 64, .configs = {{.block_q = 64, .block_kv = 64, .warps = 4, .stages = 2, .blocks = 2}}},
      {.bits = 16, .dim = 96, .configs = {{.block_q = 32, .block_kv = 64, .warps = 4, .stages = 2, .blocks = 2}}},
      {.bits = 16,
       .dim = 128,
       .configs = {{.block_q = 64, .block_kv = 64, .warps = 8, .stages = 2, .column_split = 2},
                   {.block_q = 32, .block_kv = 64, .warps = 8, .stages = 2, .column_split = 2}}},
      {.bits = 16,
       .dim = 256,
       .configs = {{.block_q = 32, .block_kv = 64, .warps = 8, .stages = 2, .column_split = 2},
                   {.block_q = 32, .block_kv = 32, .warps = 4, .column_split = 2},
                   {.block_q = 16, .block_kv = 32, .warps = 4, .column_split = 2}}},
      {.bits = 16,
       .dim = sm80_max_head_dim,
       .configs = {{.block_q = 16, .block_kv = 32, .warps = 8, .column_split = 4},
                   {.block_q = 16, .block_kv = 16, .warps = 4, .column_split = 4}}},
  };
  return table;
}

/// Of the row for these elements and this dim.
const std::vector<Sm80Config>& configs_of(const Table& table, DType dtype, int dim) {
  const int bits = static_cast<int>(8 * size_of(dtype));
  const auto row = std::find_if(table.begin(), table.end(), [&](const Sm80Row& each) { return each.bits == bits && dim <= each.dim; });
  static const std::vector<Sm80Config> none;
  return row == table.end() ? none : row->configs;
}

const Table& table_of(Sm80Kernel kernel) {
  return kernel == Sm80Kernel::forward ? forward_table() : kernel == Sm80Kernel::dkdv ? dkdv_table() : dq_table();
}

/// The same tiles with whole rows for each warp.
std::vector<Sm80Config> unsplit(std::vector<Sm80Config> table) {
  for (Sm80Config& config : table) config.warps /= config.column_split, config.column_split = 1;
  return table;
}

}  // namespace

std::string Sm80Config::text() const {
  return base::join(block_q, "x", block_kv, " warps ", warps, " stages ", stages,
                    column_split > 1 ? base::join(" split ", column_split) : "", note);
}

const char* sm80_stem(Sm80Kernel kernel) {
  static constexpr const char* stems[] = {"forward_sm80", "dq_sm80", "dkdv_sm80", "two_scan_sm80", "dq_sm80", "pairs_sm80", "measure_sm80"};
  static_assert(std::size(stems) == static_cast<std::size_t>(Sm80Kernel::measure) + 1);
  return stems[static_cast<std::size_t>(kernel)];
}

std::size_t Sm80Config::shared_bytes(const problem::Problem& p, Sm80Kernel kernel) const {
  const auto in_lines = [](const scoring::TrainableRead& read) {
    return read.reduction == scoring::Reduction::column || read.reduction == scoring::Reduction::diagonal;
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

void Sm80Config::set(jit::Constants& constants) const {
  constants.set("kBlockQ", block_q)
      .set("kBlockKv", block_kv)
      .set("kWarps", warps)
      .set("kRowTiles", row_tiles)
      .set("kStages", stages)
      .set("kColumnSplit", column_split)
      .set("kBlocksPerMultiprocessor", blocks);
}

std::vector<Sm80Config> sm80_candidates(const problem::Problem& p, Sm80Kernel kernel) {
  const int dim = round_up(std::max(p.head_dim, p.head_dim_v), 16);
  std::vector<Sm80Config> configs = configs_of(table_of(kernel), p.dtype, dim);
  if (kernel == Sm80Kernel::forward || kernel == Sm80Kernel::dq || kernel == Sm80Kernel::dkdv) return configs;
  configs = unsplit(configs);
  if (kernel == Sm80Kernel::measure) return configs;
  const bool short_elements = size_of(p.dtype) == 2;
  if (kernel == Sm80Kernel::reads) {
    if (short_elements && dim <= 128)
      configs.insert(configs.begin(), Sm80Config{.block_q = 128, .block_kv = 64, .warps = 4, .row_tiles = 2, .stages = 2});
    return configs;
  }
  for (Sm80Config& config : configs) config.stages = 1, config.blocks = 1;
  // Nothing is loaded ahead: other blocks fill the wait.
  if (short_elements && dim <= 64) configs.insert(configs.begin(), Sm80Config{.block_q = 64, .block_kv = 32, .warps = 4, .blocks = 4});
  return configs;
}

const char* sm80_family(Sm80Kernel kernel) {
  return kernel == Sm80Kernel::forward ? "sm80.forward"
         : kernel == Sm80Kernel::dq    ? "sm80.dq"
         : kernel == Sm80Kernel::dkdv  ? "sm80.dkdv"
                                       : "";
}

std::optional<std::string> sm80_illegal(const problem::Problem& p, Sm80Kernel kernel, const Sm80Config& config, std::size_t shared_bytes) {
  for (const int size : {config.block_q, config.block_kv})
    if (size < 16 || size > 128 || size % 16 != 0) return "block_q and block_kv are multiples of 16 to 128";
  if (config.warps < 1 || config.warps > 8 || config.row_tiles < 1 || config.row_tiles > 2 || config.stages < 1 || config.stages > 2 ||
      config.column_split < 1 || config.column_split > 4 || config.blocks < 1 || config.blocks > 4)
    return "warps 1 to 8, row_tiles 1 or 2, stages 1 or 2, column_split and blocks 1 to 4 are there";
  const int owned = kernel == Sm80Kernel::dkdv ? config.block_kv : config.block_q;
  if (owned * config.column_split != 16 * config.row_tiles * config.warps) return "each warp owns its rows, or its columns of them";
  const std::size_t needed = config.shared_bytes(p, kernel);
  if (needed > shared_bytes) return base::join(needed, " bytes of shared memory exceed ", shared_bytes);
  return std::nullopt;
}

std::vector<Sm80Config> sm80_space(const problem::Problem& p, Sm80Kernel kernel, std::size_t shared_bytes) {
  std::vector<Sm80Config> space;
  const auto add = [&](const Sm80Config& config) {
    const auto same = [&](const Sm80Config& other) { return text_of(other) == text_of(config); };
    if (!sm80_illegal(p, kernel, config, shared_bytes) && std::none_of(space.begin(), space.end(), same)) space.push_back(config);
  };
  const std::vector<Sm80Config> candidates = sm80_candidates(p, kernel);
  for (const Sm80Config& config : candidates) add(config);
  for (const Sm80Row& row : table_of(kernel)) {
    if (row.bits != static_cast<int>(8 * size_of(p.dtype))) continue;
    for (Sm80Config config : row.configs) {
      if (config.column_split != candidates.front().column_split) continue;
      for (config.stages = 1; config.stages <= 2; ++config.stages)
        for (config.blocks = 1; config.blocks <= 2; ++config.blocks) add(config);
    }
  }
  return space;
}

std::optional<Sm80Config> sm80_config(const problem::Problem& p, Sm80Kernel kernel, const Sm80Device& device) {
  std::string note;
  const std::string family = sm80_family(kernel);
  if (const auto tuned = family.empty() ? std::nullopt : tuned_config(p, device.name, family)) {
    auto config = parse_config<Sm80Config>(tuned->config, tuned->source);
    const auto reason = sm80_illegal(p, kernel, config, device.shared_bytes);
    note = base::join(reason ? ", not as tuned (" : ", tuned (", tuned->source, ")", reason ? ": " + *reason : "");
    config.note = note;
    if (!reason) return config;
  }
  for (Sm80Config& config : sm80_candidates(p, kernel)) {
    if (config.shared_bytes(p, kernel) > device.shared_bytes) continue;
    config.note = note;
    return config;
  }
  return std::nullopt;
}

}  // namespace foveal::cuda
