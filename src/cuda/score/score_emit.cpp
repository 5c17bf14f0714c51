#include "cuda/score/score_emit.h"

#include <algorithm>

#include "cuda/score/emit_parts.h"
#include "cuda/score/finite_factors.h"

namespace foveal::cuda {

std::string emit_values(const char* name, const std::vector<ValueId>& values, const char* count, const Problem& p) {
  const Program& program = program_of(p);
  std::vector<std::string> bodies;
  bodies.reserve(values.size());
  for (const ValueId value : values) {
    const bool integer = program[value].type == Type::integer;
    bodies.push_back(Writer(p, program).body({value}) + base::join("  return ", integer ? "__int_as_float(v" : "(v", value, ");\n"));
  }
  return base::join("constexpr int ", count, " = ", values.size(), ";\n") +
         numbered(base::join("template <int i>\nFOVEAL_DEVICE real ", name, "(const Position& at, const ScoreArgs& args)"), bodies,
                  "  return 0;\n");
}

namespace {

std::string emit_lines(const Problem& p, const LineValues& lines) {
  const std::vector<ValueId> checked = finite_factors(p, lines).walk;
  return emit_values("walk_value", lines.walk, "kWalkValues", p) + emit_values("diagonal_value", lines.diagonal, "kDiagonalValues", p) +
         base::join("constexpr bool kChecksLines = ", truth(lines.checked), ";\n") +
         flags("kWalkIsChecked", lines.walk.size(), [&](std::size_t v) {
           return p.pass == Pass::forward || std::find(checked.begin(), checked.end(), lines.walk[v]) != checked.end();
         });
}

}  // namespace

std::string emit_sink(const Problem& p, bool of_gradient) {
  Problem rows = p;
  rows.score = std::make_shared<const scoring::ScoreProgram>();
  if (rows.sink >= 0 && of_gradient && !p.param(p.sink).gradient.present) rows.sink = -1;
  return emit_score(rows);
}

namespace {

/// The offsets of a score that is a sum, for kernels that add them to exponents, or to raw scores (kOffsetsInScores).
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
    const auto sum = writer.forms().sum_with_score(result);
    if (!sum) return;
    const bool long_sum = writer.forms().is_long(*sum);
    in_scores = first || columns || (ahead.raw_offsets && long_sum && sum->gain_is_plain());
    if (long_sum && !in_scores) return;
    const Writer::Hoisted of_score = writer.gain_of(*sum);
    gain = writer.body(of_score.uniform_needs) + base::join("  return ", of_score.uniform, ";\n");
    for (const ScoreSum::Offset& offset : sum->offsets) add(writer, offset, of_score.uniform, ahead);
  }
  explicit Offsets(const Ahead& ahead) : table_units(ahead.tables.size(), "  return 1;\n"), table_is_scaled(ahead.tables.size(), false) {}

  std::string text() const {
    std::vector<device::OffsetTraits> traits;
    for (std::size_t o = 0; o < walk.size(); ++o)
      traits.push_back({.walk = static_cast<int>(walk[o]), .has_row = has_row[o], .is_scaled = is_scaled[o]});
    return base::join("constexpr int kOffsets = ", in_units.size(),
                      ";\nconstexpr bool kSumScore = ", truth(!in_units.empty() && !in_scores),
                      ";\nconstexpr bool kOffsetsInScores = ", truth(in_scores), ";\nconstexpr bool kOffsetsFirst = ", truth(first),
                      ";\nconstexpr bool kOffsetsAreColumns = ", truth(columns), ";\n") +
           array_text("OffsetTraits", "kOffset", traits) +
           numbered("template <int i>\nFOVEAL_DEVICE real table_unit(const Score& score, const ScoreArgs& args)", table_units,
                    "  return 1;\n") +
           base::join("FOVEAL_DEVICE real score_gain", head_signature, " {\n", gain, "}\n") +
           numbered(base::join("template <int i, class At>\nFOVEAL_DEVICE real offset_in_units", pair_signature), in_units,
                    "  return 0;\n") +
           numbered(base::join("template <int i, class At>\nFOVEAL_DEVICE real offset_row", pair_signature), rows, "  return 1;\n") +
           numbered(base::join("template <int i>\nFOVEAL_DEVICE real offset_unit", head_signature), units, "  return 0;\n");
  }

 private:
  void add(const Writer& writer, const ScoreSum::Offset& offset, const std::string& of_gain, const Ahead& ahead) {
    const auto [term, row] = writer.offset_of(offset);
    const std::string unit = in_scores ? base::join("(", term.uniform, ") / (", of_gain, ")") : term.uniform;
    units.push_back(writer.body(term.uniform_needs) + base::join("  return ", unit, ";\n"));
    bool scaled = false;
    for (std::size_t t = 0; t < ahead.tables.size() && first; ++t) {
      if (!term.uniform_needs.empty() || writer.forms().varying_factors(offset.value) != std::vector{ahead.tables[t].read}) continue;
      table_units[t] = units.back();
      scaled = table_is_scaled[t] = true;
    }
    is_scaled.push_back(scaled);
    const auto& values = ahead.lines.walk;
    walk.push_back(static_cast<std::size_t>(std::find(values.begin(), values.end(), offset.column) - values.begin()));
    in_units.push_back(writer.body({offset.value}) + base::join("  return ", term.rest, ";\n"));
    rows.push_back(writer.body({offset.value}) + base::join("  return ", row, ";\n"));
    has_row.push_back(offset.has_row());
  }
};

/// How many pairs of a thread are evaluated at a time, 0: all of them. Unrolled for all pairs, twice or more in a
/// kernel, a long score compiles for minutes. Not where the product starts from offsets, or pairs have elements in
/// registers of their own. given: without reads of pairs.
int pairs_in_part(const Problem& p, const Given& given, const Ahead& ahead) {
  if (!p.has_score_mod() || !ahead.tiles.empty() || ahead.offsets_first || ahead.offset_columns) return 0;
  const scoring::ScoreProgram& score = *p.score;
  std::vector<ValueId> outputs = score.forward.outputs;
  if (p.pass == Pass::backward) {
    outputs = {score.modified, score.dscore};
    for (const scoring::TrainableRead& read : score.reads) outputs.push_back(read.factor);
  }
  const int instructions = ScoreForms(p, program_of(p), given).instructions_for(outputs);
  constexpr int most_unrolled = 40, most_in_part = 2000;  // to move registers to where their part is takes four for each pair
  return instructions <= most_unrolled ? 0 : 16 * instructions <= most_in_part ? 16 : 8 * instructions <= most_in_part ? 8 : 4;
}

}  // namespace

std::string emit_score(const Problem& p, const Ahead& ahead) {
  const scoring::ScoreProgram& score = *p.score;
  const bool backward = p.has_score_mod() && p.pass == Pass::backward;
  std::string text = base::join(
      "constexpr bool kHasScore = ", truth(p.has_score_mod()), ";\n", "constexpr bool kHasMask = ", truth(p.has_mask()), ";\n",
      "constexpr bool kHasSink = ", truth(p.sink >= 0), ";\n",
      "constexpr bool kSlopeOfScore = ", truth(backward && score.backward.depends_on(score.dscore, scoring::depends_score)), ";\n");
  const bool sink_gradient = p.sink >= 0 && p.param(p.sink).gradient.present;
  text += base::join("constexpr int kSinkParam = ", sink_gradient ? p.sink : -1, ";\n");

  const scoring::Program& program = program_of(p);
  Given given{.lines = ahead.lines, .rows = ahead.row_values};
  for (const PairTile& tile : ahead.tiles) given.tiled.push_back(tile.read);
  given.tables = ahead.tables;
  std::vector<ValueId> elsewhere = given.tiled;
  for (const ReadTable& table : ahead.tables) elsewhere.push_back(table.read);
  std::vector<PairRead> pair_reads;
  const int in_part = pairs_in_part(p, given, ahead);
  if (ahead.pairs && in_part == 0) pair_reads = find_pair_reads(p, program, elsewhere);
  for (const PairRead& read : pair_reads) given.pair_reads.push_back(read.read);
  const bool uniform = !(ahead.several_heads && score_depends_on_head(p));
  if (ahead.tanh && uniform) given.tanh = ScoreForms(p, program).tanh_of_score();

  std::string modified = "  return score.raw;\n", unit = "  return score.scale;\n", slope = "  return 1;\n", slope_unit = "  return 1;\n",
              keep = "  return true;\n", sink = "  return 0;\n", times = "  return 1;\n";
  Offsets offsets(ahead);
  if (p.has_score_mod()) {
    const Writer writer(p, program, given);
    const ValueId result = backward ? score.modified : program.outputs[0];
    const Writer::Hoisted value = backward ? writer.hoist_uniform(result) : writer.hoist_constant(result);
    times = writer.tanh_times(result);
    modified = writer.body({result}) + base::join("  return ", value.rest, ";\n");
    unit = writer.body(value.uniform_needs) + base::join("  return ", value.uniform, ";\n");
    if (uniform && in_part == 0) offsets = Offsets(writer, result, ahead);
    if (offsets.in_scores) modified = "  return score.raw;\n", unit = offsets.gain;
    if (backward) {
      const Writer::Hoisted dscore = writer.hoist_from_slope(score.dscore);
      slope = writer.body({score.dscore}) + base::join("  return ", dscore.rest, ";\n");
      slope_unit = writer.body(dscore.uniform_needs) + base::join("  return ", dscore.uniform, ";\n");
    }
  }
  if (p.has_mask() && !ahead.band) keep = Writer(p, score.mask).result(score.mask.outputs[0]);
  if (p.sink >= 0) {
    const problem::TensorSpec& tensor = p.param(p.sink).tensor;
    sink = base::join("  return fv_load<", jit::device_type(tensor.dtype), ">(args.param[", p.sink, "].data, head * args.param[", p.sink,
                      "].stride[0]);\n");
  }
  text += base::join("constexpr bool kTanhAhead = ", truth(given.tanh.has_value()), ";\n");
  text += base::join("constexpr bool kCappedScore = ", truth(ahead.tanh && uniform && !backward && is_softcap(p)), ";\n");
  text += base::join("FOVEAL_DEVICE real tanh_factor", head_signature, " {\n",
                     given.tanh ? Writer(p, program).tanh_factor(*given.tanh) : "  return 0;\n", "}\n");
  text += base::join("FOVEAL_DEVICE real tanh_times", head_signature, " {\n", times, "}\n");
  text += base::join("FOVEAL_DEVICE real score_unit", head_signature, " {\n", unit, "}\n");
  text += offsets.text();
  text += base::join("constexpr int kPairsInPart = ", in_part, ";\n");
  const char* const linkage = linkage_of(p);
  text += base::join("template <class At>\n", linkage, " real score_in_units", pair_signature, " {\n", modified, "}\n");
  text += base::join("template <class At>\n", linkage, " real slope_in_units", pair_signature, " {\n", slope, "}\n");
  text += base::join("FOVEAL_DEVICE real slope_unit", head_signature, " {\n", slope_unit, "}\n");
  // Declared only: a kernel that calls it nevertheless does not link.
  text += ahead.band ? "extern __device__ bool mask_keep(const Position& at, const ScoreArgs& args);\n"
                     : "FOVEAL_DEVICE bool mask_keep(const Position& at, const ScoreArgs& args) {\n" + keep + "}\n";
  text += "FOVEAL_DEVICE real sink_logit(int head, const ScoreArgs& args) {\n" + sink + "}\n";
  text += emit_values("row_value", ahead.row_values, "kRowValues", p);
  return text + emit_lines(p, ahead.lines) + emit_pair_reads(p, program, pair_reads) + emit_pair_tiles(p, program, ahead.tiles) +
         emit_tables(p, program, ahead.tables, offsets.table_is_scaled) + emit_reads(p, given, ahead);
}

}  // namespace foveal::cuda
