#pragma once
// From score programs to tape programs. tape_lower.h makes nodes of a program's values (precision, sums by rank, constant factors),
// tape_nodes.h holds them (ranks, fused multiply-adds), tape_assemble.cpp gives them an order and slots.
#include <optional>
#include <string>
#include <vector>

#include "cpu/integer_widths.h"
#include "cpu/tape_code.h"
#include "score/program.h"

namespace foveal::cpu {

/// The memory layout of a parameter.
struct TapeLayout {
  std::vector<std::int64_t> sizes, strides;
  auto operator<=>(const TapeLayout&) const = default;
};

/// The source of all programs of a problem.
struct TapeSource {
  const scoring::ScoreProgram* score = nullptr;
  double scale = 1;
  bool f64 = false;                  ///< tiles are double
  std::vector<TapeLayout> params{};  ///< of the bound parameters
  /// All lanes share one head and have consecutive queries: the head is uniform, and what depends only on kv - q is a diagonal value.
  bool one_head = false;
  /// Which integers have 64 bits; null: none.
  const IntegerWidths* widths = nullptr;
};

/// A program and the memory that it points to. It stays valid when moved.
struct CompiledTape {
  struct alignas(64) Constant {
    char bytes[tape_constant_bytes];
    double value;
  };

  std::vector<TapeStep> steps;
  std::vector<TapePlace> places;
  std::vector<Constant> constants;
  TapeProgram program;
  TapeOperand first, last;   ///< of compile_ranges
  std::vector<Varies> sums;  ///< of compile_backward, for each trained read: within a tile, terms are summed to what varies so

  std::string text() const;
};

/// input: dots. output = (score_mod(dots * scale) * log2(e), or dots without a score_mod), -inf where masked if `masked`.
CompiledTape compile_forward(const TapeSource& source, bool masked);
/// input: dots; output: ds, in place.
CompiledTape compile_backward(const TapeSource& source, bool& reads_dots);
/// Lane values: the first key that a lane attends to and one past the last; nullopt unless the mask is one range of keys for every lane.
std::optional<CompiledTape> compile_ranges(const TapeSource& source);

}  // namespace foveal::cpu
