#include "cuda/tune/sm80.h"

#include <algorithm>

#include "base/check.h"

namespace foveal::cuda {
namespace {

int round_up(std::int64_t value, int step) { return static_cast<int>((value + step - 1) / step * step); }

/// Rows: {block_q, block_kv, warps, row_tiles, stages, column_split, blocks}.
std::vector<Sm80Config> forward_table(DType dtype, int dim) {
  if (dtype == DType::f64) {
    if (dim <= 64) return {{64, 32, 4, 1, 2, 1, 1}, {32, 32, 2, 1, 1, 1, 1}};
    if (dim <= 128) return {{32, 32, 2, 1, 1, 1, 1}, {16, 16, 1, 1, 1, 1, 1}};
    if (dim <= 256) return {{16, 16, 1, 1, 1, 1, 1}};
    return {{16, 16, 4, 1, 1, 4, 1}};
  }
  if (dtype == DType::f32) {
    if (dim <= 64) return {{64, 32, 4, 1, 2, 1, 2}};
    if (dim <= 128) return {{64, 32, 4, 1, 2, 1, 1}, {64, 32, 4, 1, 1, 1, 1}};
    if (dim <= 256) return {{64, 32, 4, 1, 1, 1, 1}, {32, 16, 2, 1, 1, 1, 1}};
    return {{32, 16, 4, 1, 1, 2, 1}, {16, 16, 2, 1, 1, 2, 1}};
  }
  if (dim <= 64) return {{128, 64, 4, 2, 2, 1, 2}, {64, 64, 4, 1, 2, 1, 2}};
  if (dim <= 128) return {{64, 64, 4, 1, 2, 1, 2}, {64, 32, 4, 1, 2, 1, 2}};
  if (dim <= 256) return {{64, 32, 4, 1, 2, 1, 2}, {64, 32, 4, 1, 1, 1, 1}, {64, 16, 4, 1, 1, 1, 1}};
  return {{64, 32, 8, 1, 1, 2, 1}, {32, 16, 4, 1, 1, 2, 1}};
}

std::vector<Sm80Config> dq_table(DType dtype, int dim) {
  if (dtype == DType::f64) {
    if (dim <= 64) return {{32, 32, 2, 1, 1, 1, 1}};
    if (dim <= 256) return {{16, 16, 1, 1, 1, 1, 1}};
    return {{16, 16, 4, 1, 1, 4, 1}};
  }
  if (dtype == DType::f32) {
    if (dim <= 64) return {{64, 32, 4, 1, 2, 1, 1}, {32, 32, 2, 1, 1, 1, 1}};
    if (dim <= 128) return {{64, 32, 4, 1, 2, 1, 1}, {32, 32, 2, 1, 1, 1, 1}};
    if (dim <= 256) return {{32, 32, 2, 1, 1, 1, 1}, {16, 16, 1, 1, 1, 1, 1}};
    return {{16, 16, 2, 1, 1, 2, 1}};
  }
  if (dim <= 128) return {{64, 64, 4, 1, 2, 1, 2}, {64, 32, 4, 1, 2, 1, 2}};
  if (dim <= 192) return {{64, 32, 4, 1, 2, 1, 1}, {64, 16, 4, 1, 1, 1, 1}};
  if (dim <= 256) return {{64, 16, 4, 1, 2, 1, 1}, {64, 16, 4, 1, 1, 1, 1}};
  return {{32, 16, 4, 1, 1, 2, 1}, {16, 16, 2, 1, 1, 2, 1}};
}

std::vector<Sm80Config> dkdv_table(DType dtype, int dim) {
  if (dtype == DType::f64) {
    if (dim <= 64) return {{16, 32, 4, 1, 1, 2, 1}};
    return {{16, 16, 4, 1, 1, 4, 1}};
  }
  if (dtype == DType::f32) {
    if (dim <= 64) return {{32, 64, 4, 1, 2, 1, 1}, {32, 32, 4, 1, 1, 2, 1}};
    if (dim <= 128) return {{32, 64, 8, 1, 2, 2, 1}, {16, 32, 4, 1, 2, 2, 1}};
    if (dim <= 256) return {{16, 32, 4, 1, 1, 2, 1}, {16, 16, 2, 1, 1, 2, 1}};
    return {{16, 16, 4, 1, 1, 4, 1}};
  }
  if (dim <= 64) return {{64, 64, 4, 1, 2, 1, 2}};
  if (dim <= 96) return {{32, 64, 4, 1, 2, 1, 2}};
  if (dim <= 128) return {{64, 64, 8, 1, 2, 2, 1}, {32, 64, 8, 1, 2, 2, 1}};
  if (dim <= 256) return {{32, 64, 8, 1, 2, 2, 1}, {32, 32, 4, 1, 1, 2, 1}, {16, 32, 4, 1, 1, 2, 1}};
  return {{16, 32, 8, 1, 1, 4, 1}, {16, 16, 4, 1, 1, 4, 1}};
}

/// The same tiles with whole rows for each warp.
std::vector<Sm80Config> unsplit(std::vector<Sm80Config> table) {
  for (Sm80Config& config : table) config.warps /= config.column_split, config.column_split = 1;
  return table;
}

}  // namespace

std::string Sm80Config::text() const {
  return base::join(block_q, "x", block_kv, " warps ", warps, " stages ", stages,
                    column_split > 1 ? base::join(" split ", column_split) : "");
}

std::size_t Sm80Config::shared_bytes(const problem::Problem& p, Sm80Kernel kernel) const {
  const int element = static_cast<int>(size_of(p.dtype)), real = p.dtype == DType::f64 ? 8 : 4;
  const int dim = round_up(p.head_dim, 16 * column_split), dim_v = round_up(p.head_dim_v, 16 * column_split);
  const auto tile = [&](int rows, int cols) { return rows * (cols * element + 16); };
  const int walked = kernel == Sm80Kernel::dkdv ? block_q : block_kv;
  int bytes = 0;
  switch (kernel) {
    case Sm80Kernel::forward:
      bytes = tile(block_q, std::max(dim, dim_v)) + tile(stages * walked, dim) + tile(stages * walked, dim_v) + round_up(block_kv, 16);
      break;
    case Sm80Kernel::measure:
      bytes = tile(block_q, dim) + tile(stages * walked, dim) + tile(stages * walked, dim_v) + round_up(block_kv, 16);
      break;
    case Sm80Kernel::dkdv:
      bytes = tile(block_kv, dim) + tile(block_kv, dim_v) + tile(stages * walked, dim) + tile(stages * walked, dim_v) +
              3 * round_up(stages * block_q * real, 16);
      break;
    case Sm80Kernel::dq:
    case Sm80Kernel::reads:
    case Sm80Kernel::pairs:
      bytes = tile(block_q, dim) + tile(block_q, dim_v) + tile(stages * walked, dim) + tile(stages * walked, dim_v) +
              round_up(block_kv, 16) + round_up(warps * real, 16);
      if (p.score && !p.score->reads.empty()) bytes += round_up(block_q * (block_kv + 8) * real, 16);
      break;
  }
  return static_cast<std::size_t>(bytes);
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
  switch (kernel) {
    case Sm80Kernel::forward:
      return forward_table(p.dtype, dim);
    case Sm80Kernel::dkdv:
      return dkdv_table(p.dtype, dim);
    case Sm80Kernel::dq:
      return dq_table(p.dtype, dim);
    case Sm80Kernel::measure:
      return unsplit(dq_table(p.dtype, dim));
    case Sm80Kernel::reads: {
      std::vector<Sm80Config> table = unsplit(dq_table(p.dtype, dim));
      if (size_of(p.dtype) == 2 && dim <= 128) table.insert(table.begin(), Sm80Config{128, 64, 4, 2, 2, 1, 1});
      return table;
    }
    case Sm80Kernel::pairs: {
      std::vector<Sm80Config> table = unsplit(dq_table(p.dtype, dim));
      for (Sm80Config& config : table) config.stages = 1, config.blocks = 1;
      // Nothing is loaded ahead: other blocks fill the wait.
      if (size_of(p.dtype) == 2 && dim <= 64) table.insert(table.begin(), Sm80Config{64, 32, 4, 1, 1, 1, 4});
      return table;
    }
  }
  return {};
}

std::optional<Sm80Config> sm80_config(const problem::Problem& problem, Sm80Kernel kernel, std::size_t shared_bytes_per_block) {
  for (const Sm80Config& config : sm80_candidates(problem, kernel))
    if (config.shared_bytes(problem, kernel) <= shared_bytes_per_block) return config;
  return std::nullopt;
}

}  // namespace foveal::cuda
