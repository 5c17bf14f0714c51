#pragma once
// Tiles of the portable kernels: pure functions from a problem to a configuration.
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cuda/jit/source.h"
#include "problem/problem.h"

namespace foveal::cuda {

/// reads: the dq kernel without dq, for gradients of parameters alone; measure: of far rows.
enum class Sm80Kernel { forward, dq, dkdv, reads, pairs, measure };

struct Sm80Config {
  int block_q, block_kv;
  int warps;
  int row_tiles;     ///< m16 tiles of rows per warp
  int stages;        ///< of the tiles that are walked
  int column_split;  ///< warps that share rows and split the columns of what is summed
  int blocks;        ///< at least this many blocks on a multiprocessor

  std::string text() const;  ///< "64x64 warps 4 stages 2"
  int threads() const { return warps * 32; }
  std::size_t shared_bytes(const problem::Problem& problem, Sm80Kernel kernel) const;
  void set(jit::Constants& constants) const;
};

/// Everything that may be chosen for head dims like these, best first.
std::vector<Sm80Config> sm80_candidates(const problem::Problem& problem, Sm80Kernel kernel);

/// The first candidate that fits into a block's shared memory.
std::optional<Sm80Config> sm80_config(const problem::Problem& problem, Sm80Kernel kernel, std::size_t shared_bytes_per_block);

constexpr int sm80_max_head_dim = 512;

}  // namespace foveal::cuda
