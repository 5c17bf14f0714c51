#pragma once
// Random problems for a GPU, where each program has kernels of its own, which take seconds to compile: so many programs, each with its types and
// head_dim, are shared by problems of random sizes, layouts, numbers and data. Both programs that use it find each other's kernels on disk.
#include <array>

#include "problem/random_line.h"

namespace foveal::fuzz {

inline problem::Line line_on_device(std::uint64_t seed, std::uint64_t programs, Device device) {
  constexpr std::uint64_t first_program = 7000;
  const std::uint64_t which = seed % programs;
  base::Random program(first_program + which), sizes(seed);
  problem::Line line = problem::random_line(program, sizes);
  line.device = device;
  if (which % 3 == 0) return line;
  // Two of three as Hopper's kernels serve them, which random ones seldom are.
  constexpr std::array<std::int64_t, 4> dims{64, 128, 96, 256};
  if (line.dtype == DType::f32 || line.dtype == DType::f64) line.dtype = DType::bf16;
  line.head_dim = line.head_dim_v = dims[which / 3 % dims.size()];
  line.attention.backward = BackwardStrategy::automatic;
  return line;
}

}  // namespace foveal::fuzz
