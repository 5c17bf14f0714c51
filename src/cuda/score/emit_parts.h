#pragma once
// The parts that emit_score() and emit_outside_reads() are put together from, for the emit_*.cpp.
#include <string>
#include <vector>

#include "cuda/device/score/traits.cuh"
#include "cuda/jit/source.h"
#include "cuda/jit/struct_text.h"
#include "cuda/score/score_emit.h"
#include "cuda/score/score_writer.h"

namespace foveal::device {
std::string value_text(ReadKind kind);
}

namespace foveal::cuda {

// ---- CUDA text ----

inline const char* truth(bool value) { return value ? "true" : "false"; }

/// A function template with one `if constexpr` branch per body: for i = 0, 1, ...
inline std::string numbered(const std::string& head, const std::vector<std::string>& bodies, const std::string& otherwise) {
  std::string text = head + " {\n";
  for (std::size_t i = 0; i < bodies.size(); ++i) text += base::join("  if constexpr (i == ", i, ") {\n", bodies[i], "  }\n");
  return text + otherwise + "}\n";
}

template <class Fn>
std::string flags(const std::string& name, std::size_t count, Fn&& flag) {
  std::string text = "constexpr bool " + name + "[] = {";
  for (std::size_t i = 0; i < count; ++i) text += base::join(truth(flag(i)), ", ");
  return text + "0};\n";
}

// ---- rows of arrays that device/score/traits.cuh declares ----

/// `constexpr TYPE name[] = {{...}, {...}, {}};`: the row at the end is there as no array is empty.
template <class Traits>
std::string array_text(const char* type, const char* name, const std::vector<Traits>& rows) {
  std::string text = base::join("constexpr ", type, " ", name, "[] = {");
  for (const Traits& row : rows) text += jit::struct_text(row) + ",\n";
  return text + "{}};\n";
}
/// `name<i>::type` is the type of an element.
template <class Fn>
std::string element_types(const std::string& name, std::size_t count, Fn&& dtype) {
  std::string text = "template <int i>\nstruct " + name + ";\n";
  for (std::size_t i = 0; i < count; ++i)
    text += base::join("template <>\nstruct ", name, "<", i, "> {\n  using type = ", jit::device_type(dtype(i)), ";\n};\n");
  return text;
}

/// How functions of a pair are declared: inlined, or called if they are long.
inline const char* linkage_of(const Problem& p) { return is_long(p) ? "FOVEAL_CALLED" : "FOVEAL_DEVICE"; }

inline constexpr const char* pair_signature = "(const Score& score, const At& at, const ScoreArgs& args)";
inline constexpr const char* head_signature = "(const Score& score, const Position& at, const ScoreArgs& args)";

/// Bitmask of the dimensions whose index differs between pairs.
inline int pair_dimensions(const Program& program, const std::vector<ValueId>& index) {
  int dimensions = 0;
  for (std::size_t d = 0; d < index.size(); ++d) dimensions |= scoring::is_uniform(program, index[d]) ? 0 : 1 << d;
  return dimensions;
}

// ---- emit_loads.cpp: values that a kernel loads for pairs ----

/// A read that a kernel may prefetch.
struct PairRead {
  ValueId read;
  int run;       ///< ColumnForm::run, where a thread then loads an element once for several of its columns; otherwise 0
  bool repeats;  ///< ColumnForm::repeats
};
/// Reads of one element per pair whose index does not depend on the score: a kernel may
/// prefetch them, except those that TMA loads as tiles.
std::vector<PairRead> find_pair_reads(const Problem& p, const Program& program, const std::vector<ValueId>& tiled);
std::string emit_pair_reads(const Problem& p, const Program& program, const std::vector<PairRead>& reads);
/// scaled: which tables hold elements times table_unit.
std::string emit_tables(const Problem& p, const Program& program, const std::vector<ReadTable>& tables, const std::vector<bool>& scaled);
std::string emit_pair_tiles(const Problem& p, const Program& program, const std::vector<PairTile>& tiles);

// ---- emit_gradients.cpp: trained reads ----

std::string emit_reads(const Problem& p, const Given& given, const Ahead& ahead);

// ---- score_emit.cpp ----

/// A function per value, of the pair's position; integers are returned as their bits.
std::string emit_values(const char* name, const std::vector<ValueId>& values, const char* count, const Problem& p);

}  // namespace foveal::cuda
