// Values that a kernel loads for pairs, beside its product q . k: elements for each pair, tables in shared memory, tiles by TMA.
#include <algorithm>

#include "cuda/score/emit_parts.h"

namespace foveal::cuda {
namespace {

DType dtype_of(const Problem& p, const Instr& read) { return p.param(read.param).tensor.dtype; }

}  // namespace

std::vector<PairRead> find_pair_reads(const Problem& p, const Program& program, const std::vector<ValueId>& tiled) {
  constexpr int most_each = 1, most_runs = 2;  // registers hold no more
  constexpr int least_run = 16;                // keys that share an element, which a thread then loads once
  const auto forms = scoring::column_forms(program, p.attention.kv_offset);
  const auto doubles = double_values(p, program);
  std::vector<PairRead> found;
  int each = 0, runs = 0;
  for (ValueId id = 0; id < program.size(); ++id) {
    const Instr& instr = program[id];
    if (instr.op != Op::read || instr.type == Type::boolean || doubles[id]) continue;
    if (instr.type == Type::integer && size_of(dtype_of(p, instr)) > 4) continue;  // values are kept as words of 32 bits
    if (std::find(tiled.begin(), tiled.end(), id) != tiled.end()) continue;
    int rows = 0, columns = 0;
    bool mixed = false;
    for (const ValueId index : instr.index) {
      const Varies over = scoring::varies(program, index);
      rows += over == Varies::row, columns += over == Varies::column;
      mixed = mixed || over == Varies::diagonal || over == Varies::pair;
    }
    if (rows != 1 || columns != 1 || mixed) continue;
    const scoring::ColumnForm form = scoring::form_of_element(forms, instr.index);
    const bool run = form.run >= least_run;
    if (run ? runs++ < most_runs : each++ < most_each) found.push_back({id, run ? form.run : 0, form.repeats});
  }
  return found;
}

std::string emit_pair_reads(const Problem& p, const Program& program, const std::vector<PairRead>& reads) {
  const auto instr = [&](std::size_t r) -> const Instr& { return program[reads[r].read]; };
  std::string text = base::join("constexpr int kPairReads = ", reads.size(), ";\n");
  std::vector<device::PairReadTraits> traits;
  for (std::size_t r = 0; r < reads.size(); ++r)
    traits.push_back({.param = instr(r).param, .run = reads[r].run, .repeats = reads[r].repeats});
  text += array_text("PairReadTraits", "kPairRead", traits);
  text += element_types("PairElementOf", reads.size(), [&](std::size_t r) { return dtype_of(p, instr(r)); });
  std::vector<std::string> origins, steps;
  const Writer writer(p, program);
  for (std::size_t r = 0; r < reads.size(); ++r) {
    const auto [origin, step] = writer.bytes_from_origin(instr(r));
    origins.push_back(writer.body(instr(r).index) + base::join("  return ", origin, ";\n"));
    steps.push_back(base::join("  return ", step, ";\n"));
  }
  return text +
         numbered("template <int i>\nFOVEAL_DEVICE i64 pair_origin(const Position& at, const ScoreArgs& args)", origins, "  return 0;\n") +
         numbered("template <int i>\nFOVEAL_DEVICE i64 pair_step(const Position& at, const ScoreArgs& args)", steps, "  return 0;\n");
}

std::string emit_tables(const Problem& p, const Program& program, const std::vector<ReadTable>& tables, const std::vector<bool>& scaled) {
  const auto instr = [&](std::size_t t) -> const Instr& { return program[tables[t].read]; };
  std::string text = base::join("constexpr int kTables = ", tables.size(), ";\n");
  const auto of_rows = [&](std::size_t t, bool padded) {  // entries of the last dimension that differs between pairs
    const auto& index = instr(t).index;
    std::size_t last = 0;
    for (std::size_t d = 0; d < index.size(); ++d) last = scoring::is_uniform(program, index[d]) ? last : d;
    const std::int64_t size = p.param(instr(t).param).param.shape()[last];
    return static_cast<int>(padded ? table_row_entries(p, index, last, size) : size);
  };
  std::vector<device::TableTraits> traits;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    traits.push_back({.param = instr(t).param,
                      .rank = static_cast<int>(instr(t).index.size()),
                      .entries = static_cast<int>(tables[t].entries),
                      .copies = static_cast<int>(tables[t].copies),
                      .row = of_rows(t, false),
                      .padded_row = of_rows(t, true),
                      .dims = pair_dimensions(program, instr(t).index),
                      .is_scaled = scaled[t]});
  }
  text += array_text("TableTraits", "kTable", traits);
  text += element_types("TableElementOf", tables.size(), [&](std::size_t t) { return dtype_of(p, instr(t)); });
  std::vector<std::string> indices;
  const Writer writer(p, program);
  for (std::size_t t = 0; t < tables.size(); ++t) {
    std::vector<ValueId> needed;
    std::string body;
    for (std::size_t d = 0; d < instr(t).index.size(); ++d) {
      if (!scoring::is_uniform(program, instr(t).index[d])) continue;
      needed.push_back(instr(t).index[d]);
      body += base::join("  index[", d, "] = ", writer.index_text(instr(t), d), ";\n");
    }
    indices.push_back(writer.body(needed) + body);
  }
  return text +
         numbered(
             "template <int i>\nFOVEAL_DEVICE void table_index(const Position& at, const ScoreArgs& args, int (&index)[kMaxParamRank])",
             indices, "");
}

std::string emit_pair_tiles(const Problem& p, const Program& program, const std::vector<PairTile>& tiles) {
  std::string text = base::join("constexpr int kPairTiles = ", tiles.size(), ";\n");
  std::vector<device::PairTileTraits> traits;
  for (const PairTile& tile : tiles)
    traits.push_back({.keys = static_cast<int>(tile.keys), .wraps = tile.wraps, .stairs = tile.stairs, .same = tile.same});
  text += array_text("PairTileTraits", "kPairTile", traits);
  text += element_types("PairTileElementOf", tiles.size(), [&](std::size_t t) { return p.params[tiles[t].param].tensor.dtype; });
  std::vector<std::string> places;
  const Writer writer(p, program);
  for (const PairTile& tile : tiles) {
    std::vector<int> dimensions{tile.column, tile.row};
    dimensions.insert(dimensions.end(), tile.others.begin(), tile.others.end());
    const auto& index = program[tile.read].index;
    std::vector<ValueId> indices;
    indices.reserve(dimensions.size());
    for (const int d : dimensions) indices.push_back(index[static_cast<std::size_t>(d)]);
    std::string body = writer.body(indices);
    for (std::size_t d = 0; d < dimensions.size(); ++d)
      body += base::join("  place[", d, "] = ", writer.index_text(program[tile.read], static_cast<std::size_t>(dimensions[d])), ";\n");
    places.push_back(body);
  }
  return text + numbered("template <int i>\nFOVEAL_DEVICE void pair_tile_place(const Position& at, const ScoreArgs& args, int (&place)[4])",
                         places, "");
}

}  // namespace foveal::cuda
