#include "cuda/score_emit.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "cuda/score_writer.h"
#include "cuda/tame_factors.h"

namespace foveal::cuda {
namespace {

/// Kernels hand on what was read for a pair as words of 32 bits.
bool fits_word(DType integer) { return size_of(integer) <= 4; }

/// A run of so many keys has one element at the least, which a thread then loads once for the columns that it holds of it.
constexpr int least_run = 16;

/// A read that a kernel may load ahead.
struct PairRead {
  ValueId read;
  int run;       ///< ColumnForm::run, where it is least_run at the least; otherwise 0
  bool repeats;  ///< ColumnForm::repeats
};

/// Reads of one element per pair whose place is known without the score: a kernel may load them ahead, but for those that it gets as tiles.
std::vector<PairRead> find_pair_reads(const Problem& p, const Program& program, const std::vector<ValueId>& tiled) {
  constexpr int most_each = 1, most_runs = 2;  // registers hold the values of one for each pair
  const auto forms = scoring::column_forms(program, p.attention.kv_offset);
  std::vector<PairRead> found;
  int each = 0, runs = 0;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const Instr& instr = program.code[i];
    if (instr.op != Op::read || instr.type == Type::boolean) continue;
    if (instr.type == Type::integer && !fits_word(p.params[static_cast<std::size_t>(instr.param)].tensor.dtype)) continue;
    if (std::find(tiled.begin(), tiled.end(), static_cast<ValueId>(i)) != tiled.end()) continue;
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
    if (run ? runs++ < most_runs : each++ < most_each) found.push_back({static_cast<ValueId>(i), run ? form.run : 0, form.repeats});
  }
  return found;
}

bool depends_on_score(const Program& program, ValueId value) {
  return (program.depends[static_cast<std::size_t>(value)] & scoring::depends_score) != 0;
}

/// Of the functions of a pair.
const char* linkage_of(const Problem& p) { return is_long(p) ? "FOVEAL_CALLED" : "FOVEAL_DEVICE"; }

constexpr const char* pair_signature = "(const Score& score, const At& at, const ScoreArgs& args)";
constexpr const char* head_signature = "(const Score& score, const Position& at, const ScoreArgs& args)";

/// A template whose value or effect for i = 0, 1, ... is given.
std::string numbered(const std::string& head, const std::vector<std::string>& bodies, const std::string& otherwise) {
  std::string text = head + " {\n";
  for (std::size_t i = 0; i < bodies.size(); ++i) text += base::join("  if constexpr (i == ", i, ") {\n", bodies[i], "  }\n");
  return text + otherwise + "}\n";
}

template <class Fn>
std::string list(const std::string& declaration, std::size_t count, Fn&& element) {
  std::string text = declaration + "[] = {";
  for (std::size_t i = 0; i < count; ++i) {
    text += element(i);
    text += ", ";
  }
  return text + "0};\n";
}

/// The dimensions whose index differs between pairs, a bit each.
std::string pair_dimensions(const Program& program, const std::vector<ValueId>& index) {
  int dimensions = 0;
  for (std::size_t d = 0; d < index.size(); ++d) dimensions |= is_pair_dimension(program, index[d]) ? 1 << d : 0;
  return std::to_string(dimensions);
}

const char* kind_text(scoring::Reduction reduction) {
  switch (reduction) {
    case scoring::Reduction::uniform:
      return "kUniform";
    case scoring::Reduction::row:
      return "kRow";
    case scoring::Reduction::column:
      return "kColumn";
    case scoring::Reduction::diagonal:
      return "kDiagonal";
    case scoring::Reduction::element:
      return "kElement";
    case scoring::Reduction::scatter:
      return "kScatter";
  }
  return "";
}

std::string emit_pair_reads(const Problem& p, const Program& program, const std::vector<PairRead>& reads) {
  const auto instr = [&](std::size_t r) -> const Instr& { return program.code[static_cast<std::size_t>(reads[r].read)]; };
  std::string text = base::join("constexpr int kPairReads = ", reads.size(), ";\n");
  text += list("constexpr int kPairParam", reads.size(), [&](std::size_t r) { return std::to_string(instr(r).param); });
  text += list("constexpr int kPairRun", reads.size(), [&](std::size_t r) { return std::to_string(reads[r].run); });
  text += list("constexpr bool kPairRepeats", reads.size(), [&](std::size_t r) { return reads[r].repeats ? "true" : "false"; });
  text += "template <int i>\nstruct PairElementOf;\n";
  std::vector<std::string> origins, steps;
  const Writer writer(p, program);
  for (std::size_t r = 0; r < reads.size(); ++r) {
    const DType dtype = p.params[static_cast<std::size_t>(instr(r).param)].tensor.dtype;
    text += base::join("template <>\nstruct PairElementOf<", r, "> {\n  using type = ", device_type(dtype), ";\n};\n");
    const auto [origin, step] = writer.bytes_from_origin(instr(r));
    origins.push_back(writer.body(instr(r).index) + base::join("  return ", origin, ";\n"));
    steps.push_back(base::join("  return ", step, ";\n"));
  }
  return text +
         numbered("template <int i>\nFOVEAL_DEVICE i64 pair_origin(const Position& at, const ScoreArgs& args)", origins, "  return 0;\n") +
         numbered("template <int i>\nFOVEAL_DEVICE i64 pair_step(const Position& at, const ScoreArgs& args)", steps, "  return 0;\n");
}

std::string emit_tables(const Problem& p, const Program& program, const std::vector<ReadTable>& tables) {
  const auto instr = [&](std::size_t t) -> const Instr& { return program.code[static_cast<std::size_t>(tables[t].read)]; };
  std::string text = base::join("constexpr int kTables = ", tables.size(), ";\n");
  text += list("constexpr int kTableParam", tables.size(), [&](std::size_t t) { return std::to_string(instr(t).param); });
  text += list("constexpr int kTableRank", tables.size(), [&](std::size_t t) { return std::to_string(instr(t).index.size()); });
  text += list("constexpr int kTableEntries", tables.size(), [&](std::size_t t) { return std::to_string(tables[t].entries); });
  const auto of_rows = [&](std::size_t t, bool padded) {  // entries of the last dimension that differs between pairs
    const auto& index = instr(t).index;
    std::size_t last = 0;
    for (std::size_t d = 0; d < index.size(); ++d) last = is_pair_dimension(program, index[d]) ? d : last;
    const std::int64_t size = p.params[static_cast<std::size_t>(instr(t).param)].param.shape()[last];
    return std::to_string(padded ? table_row_entries(p, index, last, size) : size);
  };
  text += list("constexpr int kTableRow", tables.size(), [&](std::size_t t) { return of_rows(t, false); });
  text += list("constexpr int kTablePaddedRow", tables.size(), [&](std::size_t t) { return of_rows(t, true); });
  text += list("constexpr int kTableCopies", tables.size(), [&](std::size_t t) { return std::to_string(tables[t].copies); });
  text += list("constexpr int kTableDims", tables.size(), [&](std::size_t t) { return pair_dimensions(program, instr(t).index); });
  text += "template <int i>\nstruct TableElementOf;\n";
  std::vector<std::string> indices;
  const Writer writer(p, program);
  for (std::size_t t = 0; t < tables.size(); ++t) {
    const auto param = static_cast<std::size_t>(instr(t).param);
    text +=
        base::join("template <>\nstruct TableElementOf<", t, "> {\n  using type = ", device_type(p.params[param].tensor.dtype), ";\n};\n");
    std::vector<ValueId> needed;
    std::string body;
    for (std::size_t d = 0; d < instr(t).index.size(); ++d) {
      if (is_pair_dimension(program, instr(t).index[d])) continue;
      needed.push_back(instr(t).index[d]);
      body += base::join("  index[", d, "] = ", writer.index_text(instr(t).index[d], param, d), ";\n");
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
  const auto truth = [](bool value) { return value ? "true" : "false"; };
  text += list("constexpr bool kPairTileWraps", tiles.size(), [&](std::size_t t) { return truth(tiles[t].wraps); });
  text += list("constexpr int kPairTileKeys", tiles.size(), [&](std::size_t t) { return std::to_string(tiles[t].keys); });
  text += list("constexpr bool kPairTileStairs", tiles.size(), [&](std::size_t t) { return truth(tiles[t].stairs); });
  text += list("constexpr bool kPairTileSame", tiles.size(), [&](std::size_t t) { return truth(tiles[t].same); });
  text += "template <int i>\nstruct PairTileElementOf;\n";
  std::vector<std::string> places;
  const Writer writer(p, program);
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    const PairTile& tile = tiles[t];
    text += base::join("template <>\nstruct PairTileElementOf<", t, "> {\n  using type = ", device_type(p.params[tile.param].tensor.dtype),
                       ";\n};\n");
    std::vector<int> dimensions{tile.column, tile.row};
    dimensions.insert(dimensions.end(), tile.others.begin(), tile.others.end());
    const auto& index = program.code[static_cast<std::size_t>(tile.read)].index;
    std::vector<ValueId> indices;
    indices.reserve(dimensions.size());
    for (const int d : dimensions) indices.push_back(index[static_cast<std::size_t>(d)]);
    std::string body = writer.body(indices);
    for (std::size_t d = 0; d < dimensions.size(); ++d)
      body += base::join("  place[", d, "] = ", writer.index_text(indices[d], tile.param, static_cast<std::size_t>(dimensions[d])), ";\n");
    places.push_back(body);
  }
  return text + numbered("template <int i>\nFOVEAL_DEVICE void pair_tile_place(const Position& at, const ScoreArgs& args, int (&place)[4])",
                         places, "");
}

/// What a kernel needs that sums the reads of a table for each query.
std::string emit_row_reads(const Problem& p, const std::vector<RowRead>& rows) {
  const Program& program = p.score->backward;
  const auto truth = [](bool value) { return value ? "true" : "false"; };
  std::string text = base::join("constexpr int kRowReads = ", rows.size(), ";\n");
  const auto integers = [&](const char* name, auto&& of) {
    text += list(base::join("constexpr int ", name), rows.size(), [&](std::size_t i) { return std::to_string(of(rows[i])); });
  };
  integers("kRowRead", [](const RowRead& row) { return row.read; });
  integers("kRowEntries", [](const RowRead& row) { return row.entries; });
  integers("kRowRun", [](const RowRead& row) { return row.run; });
  integers("kRowDims", [](const RowRead& row) { return row.dims; });
  text += list("constexpr bool kRowRepeats", rows.size(), [&](std::size_t i) { return truth(rows[i].repeats); });
  text += list("constexpr bool kRowDistinct", rows.size(), [&](std::size_t i) { return truth(rows[i].distinct); });
  text += list("constexpr bool kRowAny", rows.size(), [&](std::size_t i) { return truth(rows[i].bins() == device::RowBins::any); });
  text += list("constexpr bool kRowStored", rows.size(), [&](std::size_t i) { return truth(rows[i].stored); });
  text += "template <int i>\nstruct RowGradientOf;\n";
  std::vector<std::string> bins;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const scoring::TrainableRead& read = p.score->reads[static_cast<std::size_t>(rows[i].read)];
    const auto param = static_cast<std::size_t>(read.param);
    text +=
        base::join("template <>\nstruct RowGradientOf<", i, "> {\n  using type = ", device_type(p.params[param].gradient.dtype), ";\n};\n");
    const Writer writer(p, program);
    std::vector<ValueId> needed;
    std::string bin;
    for (std::size_t d = 0; d < read.index.size(); ++d) {
      if (!(rows[i].dims >> d & 1)) continue;
      needed.push_back(read.index[d]);
      const std::string index = writer.index_text(read.index[d], param, d);
      bin = bin.empty() ? index : base::join("(", bin, ") * ", p.params[param].param.shape()[d], " + ", index);
    }
    bins.push_back(writer.body(needed) + base::join("  return ", bin, ";\n"));
  }
  return text + numbered("template <int i>\nFOVEAL_DEVICE int row_bin(const Position& at, const ScoreArgs& args)", bins, "  return 0;\n");
}

/// A function for each of some values, found from where a pair is; integers as their bits.
std::string emit_values(const char* name, const std::vector<ValueId>& values, const char* count, const Problem& p) {
  const Program& program = program_of(p);
  std::vector<std::string> bodies;
  bodies.reserve(values.size());
  for (const ValueId value : values) {
    const bool integer = program.code[static_cast<std::size_t>(value)].type == Type::integer;
    bodies.push_back(Writer(p, program).body({value}) + base::join("  return ", integer ? "__int_as_float(v" : "(v", value, ");\n"));
  }
  return base::join("constexpr int ", count, " = ", values.size(), ";\n") +
         numbered(base::join("template <int i>\nFOVEAL_DEVICE real ", name, "(const Position& at, const ScoreArgs& args)"), bodies,
                  "  return 0;\n");
}

std::string emit_reads(const Problem& p, const Given& given, const Ahead& ahead) {
  const auto& reads = p.score->reads;
  const Program& program = p.score->backward;
  std::vector<ReadFacts> facts = read_facts(p);
  for (const RowRead& row : ahead.rows)
    facts[static_cast<std::size_t>(row.read)].kind = scoring::Reduction::element;  // not stored: left alone
  const std::vector<ReadBins>& bins_of_reads = ahead.bins;
  const std::size_t count = reads.size();
  const auto truth = [](bool value) { return value ? "true" : "false"; };
  std::string text = base::join("constexpr int kReads = ", count, ";\n");
  text += list("constexpr int kReadKind", count, [&](std::size_t r) { return kind_text(facts[r].kind); });
  text += list("constexpr int kReadParam", count, [&](std::size_t r) { return std::to_string(reads[r].param); });
  text += list("constexpr int kReadRank", count, [&](std::size_t r) { return std::to_string(reads[r].index.size()); });
  const auto dimension = [&](std::size_t r, std::uint8_t symbol) {  // the last one that depends on it
    std::size_t found = 0;
    for (std::size_t d = 0; d < reads[r].index.size(); ++d)
      if (program.depends_of(reads[r].index[d]) & symbol) found = d;
    return std::to_string(found);
  };
  text += list("constexpr int kReadRowDim", count, [&](std::size_t r) { return dimension(r, scoring::depends_q); });
  text += list("constexpr int kReadColumnDim", count, [&](std::size_t r) { return dimension(r, scoring::depends_kv); });
  text += list("constexpr bool kReadStores", count, [&](std::size_t r) { return truth(facts[r].storage == GradientStorage::stored); });
  text += list("constexpr bool kFactorOfScore", count, [&](std::size_t r) { return truth(facts[r].factor_of_score); });
  text += list("constexpr bool kFollowsFromDk", count, [&](std::size_t r) { return truth(facts[r].follows_from_dk); });
  const auto bins_of = [&](std::size_t r) { return r < bins_of_reads.size() ? bins_of_reads[r] : ReadBins{0, 0, facts[r].elements}; };
  text += list("constexpr int kBinCopies", count, [&](std::size_t r) { return std::to_string(bins_of(r).copies); });
  text += list("constexpr int kBinEntries", count, [&](std::size_t r) { return std::to_string(bins_of(r).entries); });
  text += list("constexpr bool kBinWindow", count, [&](std::size_t r) { return truth(bins_of(r).is_window()); });
  text += list("constexpr int kBinDims", count, [&](std::size_t r) { return pair_dimensions(program, reads[r].index); });
  const std::vector<Interval> bounds = bounds_of(program, p);
  text += list("constexpr bool kFactorIsFinite", count, [&](std::size_t r) {
    const Interval& factor = bounds[static_cast<std::size_t>(reads[r].factor)];
    constexpr double most = 1e30;  // of fp32
    return truth(factor.low >= -most && factor.high <= most && !factor.maybe_nan);
  });
  const TameFactors tame = tame_factors(p, ahead.lines);
  text += list("constexpr bool kFactorIsTame", count, [&](std::size_t r) { return truth(r < tame.reads.size() && tame.reads[r]); });
  text += emit_values("key_value", tame.keys, "kKeyValues", p);
  text += "template <int r>\nstruct ReadGradientOf {\n  using type = real;\n};\n";
  for (std::size_t r = 0; r < count; ++r) {
    if (facts[r].storage != GradientStorage::stored) continue;
    text += base::join("template <>\nstruct ReadGradientOf<", r,
                       "> {\n  using type = ", device_type(p.params[facts[r].param].gradient.dtype), ";\n};\n");
  }
  text += "template <int r>\nusing ReadGradient = typename ReadGradientOf<r>::type;\n";

  std::vector<std::string> factors, units, indices, bins;
  std::vector<bool> ones;
  if (count > 0) {
    const Writer writer(p, program), with_given(p, program, given);
    for (const scoring::TrainableRead& read : reads) {
      const Writer::Apart factor = with_given.factor_apart_from_uniform(read.factor);
      factors.push_back(with_given.body({read.factor}) + base::join("  return ", factor.rest, ";\n"));
      units.push_back(writer.body(factor.uniform_needs) + base::join("  return ", factor.uniform, ";\n"));
      ones.push_back(factor.rest == "1");
      std::string body = writer.body(read.index);
      for (std::size_t d = 0; d < read.index.size(); ++d)
        body += base::join("  index[", d, "] = ", writer.index_text(read.index[d], static_cast<std::size_t>(read.param), d), ";\n");
      indices.push_back(body);
      Instr place;
      place.param = read.param;
      place.index = read.index;
      const std::string bin = writer.element_text(place);
      bins.push_back(bins_of(static_cast<std::size_t>(&read - reads.data())).copies > 0
                         ? with_given.body(read.index) + base::join("  return ", bin, ";\n")
                         : "  return 0;\n");
    }
  }
  text += list("constexpr bool kFactorIsOne", count, [&](std::size_t r) { return truth(ones[r]); });
  text += numbered(base::join("template <int i, class At>\n", linkage_of(p), " real read_factor_in_units", pair_signature), factors,
                   "  return 0;\n");
  text += numbered(base::join("template <int i>\nFOVEAL_DEVICE real read_unit", head_signature), units, "  return 0;\n");
  text += numbered(base::join("template <int i, class At>\nFOVEAL_DEVICE int read_bin", pair_signature), bins, "  return 0;\n");
  text += numbered(
      "template <int i>\nFOVEAL_DEVICE void read_index(const Score& score, const Position& at, const ScoreArgs& args, int "
      "(&index)[kMaxParamRank])",
      indices, "");
  return ahead.sums_rows ? text + emit_row_reads(p, ahead.rows) : text;
}

std::string emit_lines(const Problem& p, const LineValues& lines) {
  const std::vector<ValueId> checked = tame_factors(p, lines).walk;
  return emit_values("walk_value", lines.walk, "kWalkValues", p) + emit_values("diagonal_value", lines.diagonal, "kDiagonalValues", p) +
         base::join("constexpr bool kChecksLines = ", lines.checked ? "true" : "false", ";\n") +
         list("constexpr bool kWalkIsChecked", lines.walk.size(), [&](std::size_t v) {
           const bool is = p.pass == Pass::forward || std::find(checked.begin(), checked.end(), lines.walk[v]) != checked.end();
           return std::string(is ? "true" : "false");
         });
}

/// An index that may leave its parameter.
struct LooseIndex {
  ValueId index;
  std::int32_t param;
  std::size_t dimension;
};
std::vector<LooseIndex> loose_indices(const Problem& p, const Program& program) {
  std::vector<LooseIndex> loose;
  if (program.empty()) return loose;
  const std::vector<Interval> bounds = bounds_of(program, p);
  for (const Instr& instr : program.code) {
    if (instr.op != Op::read) continue;
    for (std::size_t d = 0; d < instr.index.size(); ++d) {
      const Interval& of_index = bounds[static_cast<std::size_t>(instr.index[d])];
      const auto last = static_cast<double>(p.params[static_cast<std::size_t>(instr.param)].param.shape()[d] - 1);
      if (!(of_index.low >= 0 && of_index.high <= last)) loose.push_back({instr.index[d], instr.param, d});
    }
  }
  return loose;
}

}  // namespace

bool reads_may_leave(const Problem& p) { return !loose_indices(p, p.score->mask).empty() || !loose_indices(p, p.score->forward).empty(); }

std::string emit_outside_reads(const Problem& p) {
  const auto statements = [&](const Program& program) {
    const std::vector<LooseIndex> loose = loose_indices(p, program);
    if (loose.empty()) return std::string("  return false;\n");
    std::vector<ValueId> needed;
    std::string tests;
    for (const auto& [index, param, dimension] : loose) {
      needed.push_back(index);
      tests += base::join("  if (v", index, " < 0 || v", index, " >= args.param[", param, "].size[", dimension, "]) {\n    read = {", param,
                          ", ", dimension, ", v", index, "};\n    return true;\n  }\n");
    }
    return Writer(p, program).body(needed) + tests + "  return false;\n";
  };
  const std::vector<LooseIndex> of_score = loose_indices(p, p.score->forward);
  const bool reads_score = std::any_of(of_score.begin(), of_score.end(),
                                       [&](const LooseIndex& loose) { return depends_on_score(p.score->forward, loose.index); });
  return base::join("constexpr bool kIndexReadsScore = ", reads_score ? "true" : "false", ";\n",
                    "FOVEAL_DEVICE bool mask_reads_outside(const Position& at, const ScoreArgs& args, OutsideRead& read) {\n",
                    statements(p.score->mask), "}\n",
                    "FOVEAL_DEVICE bool score_reads_outside(const Score& score, const Position& at, const ScoreArgs& args, OutsideRead& "
                    "read) {\n",
                    statements(p.score->forward), "}\n");
}

std::string emit_sink(const Problem& p, bool of_gradient) {
  Problem rows = p;
  rows.score = std::make_shared<const scoring::ScoreProgram>();
  if (rows.sink >= 0 && of_gradient && !p.params[static_cast<std::size_t>(p.sink)].gradient.present) rows.sink = -1;
  return emit_score(rows);
}

namespace {

/// The offsets of a score that is a sum, as text: of a kernel that adds them to powers of two, or to raw scores (kOffsetsInScores).
struct Offsets {
  bool first = false, columns = false, in_scores = false;
  std::string gain = "  return 0;\n";
  std::vector<std::string> in_units{}, units{}, rows{}, table_units{};
  std::vector<bool> has_row{}, is_scaled{}, table_is_scaled{};
  std::vector<std::size_t> walk{};

  Offsets(const Writer& writer, ValueId result, const Ahead& ahead)
      : first(ahead.offsets_first),
        columns(ahead.offset_columns),
        table_units(ahead.tables.size(), "  return 1;\n"),
        table_is_scaled(ahead.tables.size(), false) {
    const auto sum = writer.sum_with_score(result);
    if (!sum) return;
    in_scores = first || columns || (ahead.raw_offsets && sum->is_long && sum->gain_is_plain);
    if (sum->is_long && !in_scores) return;
    gain = writer.body(sum->gain.uniform_needs) + base::join("  return ", sum->gain.uniform, ";\n");
    for (const Writer::ScoreSum::Offset& offset : sum->offsets) add(writer, offset, sum->gain.uniform, ahead);
  }
  explicit Offsets(const Ahead& ahead) : table_units(ahead.tables.size(), "  return 1;\n"), table_is_scaled(ahead.tables.size(), false) {}

  std::string text() const {
    const auto truth = [](bool value) { return value ? "true" : "false"; };
    const auto truths = [&](const char* name, const std::vector<bool>& are) {
      return list(base::join("constexpr bool ", name), are.size(), [&](std::size_t i) { return std::string(truth(are[i])); });
    };
    return base::join("constexpr int kOffsets = ", in_units.size(),
                      ";\nconstexpr bool kSumScore = ", truth(!in_units.empty() && !in_scores),
                      ";\nconstexpr bool kOffsetsInScores = ", truth(in_scores), ";\nconstexpr bool kOffsetsFirst = ", truth(first),
                      ";\nconstexpr bool kOffsetsAreColumns = ", truth(columns), ";\n") +
           list("constexpr int kOffsetWalk", walk.size(), [&](std::size_t o) { return std::to_string(walk[o]); }) +
           truths("kOffsetHasRow", has_row) + truths("kOffsetIsScaled", is_scaled) + truths("kTableIsScaled", table_is_scaled) +
           numbered("template <int i>\nFOVEAL_DEVICE real table_unit(const Score& score, const ScoreArgs& args)", table_units,
                    "  return 1;\n") +
           base::join("FOVEAL_DEVICE real score_gain", head_signature, " {\n", gain, "}\n") +
           numbered(base::join("template <int i, class At>\nFOVEAL_DEVICE real offset_in_units", pair_signature), in_units,
                    "  return 0;\n") +
           numbered(base::join("template <int i, class At>\nFOVEAL_DEVICE real offset_row", pair_signature), rows, "  return 1;\n") +
           numbered(base::join("template <int i>\nFOVEAL_DEVICE real offset_unit", head_signature), units, "  return 0;\n");
  }

 private:
  void add(const Writer& writer, const Writer::ScoreSum::Offset& offset, const std::string& of_gain, const Ahead& ahead) {
    const std::string unit = in_scores ? base::join("(", offset.apart.uniform, ") / (", of_gain, ")") : offset.apart.uniform;
    units.push_back(writer.body(offset.apart.uniform_needs) + base::join("  return ", unit, ";\n"));
    bool scaled = false;
    for (std::size_t t = 0; t < ahead.tables.size() && first; ++t) {
      if (!offset.apart.uniform_needs.empty() || writer.varying_factors(offset.value) != std::vector{ahead.tables[t].read}) continue;
      table_units[t] = units.back();
      scaled = table_is_scaled[t] = true;
    }
    is_scaled.push_back(scaled);
    const auto& values = ahead.lines.walk;
    walk.push_back(static_cast<std::size_t>(std::find(values.begin(), values.end(), offset.column) - values.begin()));
    in_units.push_back(writer.body({offset.value}) + base::join("  return ", offset.apart.rest, ";\n"));
    rows.push_back(writer.body({offset.value}) + base::join("  return ", offset.row, ";\n"));
    has_row.push_back(offset.row != "1");
  }
};

}  // namespace

std::string emit_score(const Problem& p, const Ahead& ahead) {
  const scoring::ScoreProgram& score = *p.score;
  const bool backward = p.has_score_mod() && p.pass == Pass::backward;
  std::string text = base::join(
      "constexpr bool kHasScore = ", p.has_score_mod() ? "true" : "false", ";\n",
      "constexpr bool kHasMask = ", p.has_mask() ? "true" : "false", ";\n", "constexpr bool kHasSink = ", p.sink >= 0 ? "true" : "false",
      ";\n", "constexpr bool kSlopeOfScore = ", backward && depends_on_score(score.backward, score.dscore) ? "true" : "false", ";\n");
  const bool sink_gradient = p.sink >= 0 && p.params[static_cast<std::size_t>(p.sink)].gradient.present;
  text += base::join("constexpr int kSinkParam = ", sink_gradient ? p.sink : -1, ";\n");

  const scoring::Program& program = program_of(p);
  Given given{.lines = ahead.lines, .rows = ahead.row_values};
  for (const PairTile& tile : ahead.tiles) given.tiled.push_back(tile.read);
  given.tables = ahead.tables;
  std::vector<ValueId> elsewhere = given.tiled;
  for (const ReadTable& table : ahead.tables) elsewhere.push_back(table.read);
  std::vector<PairRead> pair_reads;
  if (ahead.pairs) pair_reads = find_pair_reads(p, program, elsewhere);
  for (const PairRead& read : pair_reads) given.pair_reads.push_back(read.read);
  const bool uniform = !(ahead.several_heads && score_depends_on_head(p));
  if (ahead.tanh && uniform) given.tanh = Writer(p, program).tanh_of_score();

  std::string modified = "  return score.raw;\n", unit = "  return score.scale;\n", slope = "  return 1;\n", slope_unit = "  return 1;\n",
              keep = "  return true;\n", sink = "  return 0;\n", times = "  return 1;\n";
  Offsets offsets(ahead);
  if (p.has_score_mod()) {
    const Writer writer(p, program, given);
    const ValueId result = backward ? score.modified : program.outputs[0];
    const Writer::Apart value = backward ? writer.apart_from_uniform(result) : writer.apart_from_constant(result);
    times = writer.tanh_times(result);
    modified = writer.body({result}) + base::join("  return ", value.rest, ";\n");
    unit = writer.body(value.uniform_needs) + base::join("  return ", value.uniform, ";\n");
    if (uniform) offsets = Offsets(writer, result, ahead);
    if (offsets.in_scores) modified = "  return score.raw;\n", unit = offsets.gain;
    if (backward) {
      const Writer::Apart dscore = writer.slope_apart_from_uniform(score.dscore);
      slope = writer.body({score.dscore}) + base::join("  return ", dscore.rest, ";\n");
      slope_unit = writer.body(dscore.uniform_needs) + base::join("  return ", dscore.uniform, ";\n");
    }
  }
  if (p.has_mask() && !ahead.band) keep = Writer(p, score.mask).result(score.mask.outputs[0]);
  if (p.sink >= 0) {
    const problem::TensorSpec& tensor = p.params[static_cast<std::size_t>(p.sink)].tensor;
    sink = base::join("  return fv_load<", device_type(tensor.dtype), ">(args.param[", p.sink, "].data, head * args.param[", p.sink,
                      "].stride[0]);\n");
  }
  text += base::join("constexpr bool kTanhAhead = ", given.tanh ? "true" : "false", ";\n");
  text += base::join("constexpr bool kCappedScore = ", ahead.tanh && uniform && !backward && is_capped(p) ? "true" : "false", ";\n");
  text += base::join("FOVEAL_DEVICE real tanh_factor", head_signature, " {\n",
                     given.tanh ? Writer(p, program).tanh_factor(*given.tanh) : "  return 0;\n", "}\n");
  text += base::join("FOVEAL_DEVICE real tanh_times", head_signature, " {\n", times, "}\n");
  text += base::join("FOVEAL_DEVICE real score_unit", head_signature, " {\n", unit, "}\n");
  text += offsets.text();
  const char* const linkage = linkage_of(p);
  text += base::join("template <class At>\n", linkage, " real score_in_units", pair_signature, " {\n", modified, "}\n");
  text += base::join("template <class At>\n", linkage, " real slope_in_units", pair_signature, " {\n", slope, "}\n");
  text += base::join("FOVEAL_DEVICE real slope_unit", head_signature, " {\n", slope_unit, "}\n");
  // Who asks nevertheless finds no such function, and does not compile.
  text += ahead.band ? "extern __device__ bool mask_keep(const Position& at, const ScoreArgs& args);\n"
                     : "FOVEAL_DEVICE bool mask_keep(const Position& at, const ScoreArgs& args) {\n" + keep + "}\n";
  text += "FOVEAL_DEVICE real sink_logit(int head, const ScoreArgs& args) {\n" + sink + "}\n";
  text += emit_values("row_value", ahead.row_values, "kRowValues", p);
  return text + emit_lines(p, ahead.lines) + emit_pair_reads(p, program, pair_reads) + emit_pair_tiles(p, program, ahead.tiles) +
         emit_tables(p, program, ahead.tables) + emit_reads(p, given, ahead);
}

}  // namespace foveal::cuda
