#pragma once
// Over which pairs of a batch entry and head a value varies: the lattice by which backends hoist values and gradients are reduced.
#include <cstdint>

namespace foveal::scoring {

struct Program;

enum class Varies : std::uint8_t {
  uniform,   ///< constant
  row,       ///< with the query only
  column,    ///< with the key only
  diagonal,  ///< with q_idx - kv_idx only
  pair,      ///< with the pair, or with the score
};

const char* to_string(Varies varies);

/// Of a value that is computed from two others.
constexpr Varies join(Varies a, Varies b) { return a == b || b == Varies::uniform ? a : a == Varies::uniform ? b : Varies::pair; }

/// along_diagonals: as in Program.
Varies varies(std::uint8_t depends, bool along_diagonals);
Varies varies(const Program& program, std::int32_t value);
inline bool is_uniform(const Program& program, std::int32_t value) { return varies(program, value) == Varies::uniform; }

}  // namespace foveal::scoring
