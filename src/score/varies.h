#pragma once
// Over which pairs of one batch and head a value varies: the lattice by which back ends place values, and by which gradients are reduced.
#include <cstdint>

namespace foveal::scoring {

struct Program;

enum class Varies : std::uint8_t {
  uniform,   ///< over none
  row,       ///< with the query alone
  column,    ///< with the key alone
  diagonal,  ///< with q_idx - kv_idx alone
  pair,      ///< with each pair, or with the score
};

/// Of what is made of both.
constexpr Varies join(Varies a, Varies b) { return a == b || b == Varies::uniform ? a : a == Varies::uniform ? b : Varies::pair; }

/// From a Depends set and whether, of positions, the value depends on their difference only.
Varies varies(std::uint8_t depends, bool along_diagonals);
Varies varies(const Program& program, std::int32_t value);

}  // namespace foveal::scoring
