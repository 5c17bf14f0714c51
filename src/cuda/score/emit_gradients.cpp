// Trained reads: factors, indices and bins of their terms.
#include <iterator>

#include "cuda/score/emit_parts.h"
#include "cuda/score/finite_factors.h"

namespace foveal {

std::string device::value_text(ReadKind kind) {
  static constexpr const char* names[] = {"kUniform", "kRow", "kColumn", "kDiagonal", "kElement", "kScatter"};
  static_assert(std::size(names) == kScatter + 1);
  return names[kind];
}

namespace cuda {
namespace {

device::ReadKind kind_of(const PlannedRead& read) {
  if (read.has_own_kernel()) return device::kElement;  // not stored: it is left alone
  switch (read.facts.over) {
    case Varies::uniform:
      return device::kUniform;
    case Varies::row:
      return device::kRow;
    case Varies::column:
      return device::kColumn;
    case Varies::diagonal:
      return device::kDiagonal;
    case Varies::pair:
      break;
  }
  return read.facts.scatters() ? device::kScatter : device::kElement;
}

/// What a kernel needs that sums the reads of a table for each query.
std::string emit_row_reads(const Problem& p, const std::vector<RowRead>& rows) {
  std::string text = base::join("constexpr int kRowReads = ", rows.size(), ";\n");
  std::vector<device::RowReadTraits> traits;
  traits.reserve(rows.size());
  for (const RowRead& row : rows) {
    traits.push_back({.read = row.read,
                      .entries = row.entries,
                      .dims = static_cast<int>(row.dims),
                      .run = row.run,
                      .repeats = row.repeats,
                      .distinct = row.distinct,
                      .any = row.bins() == device::RowBins::any,
                      .stored = row.stored});
  }
  text += array_text("RowReadTraits", "kRowRead", traits);
  const auto read_of = [&](std::size_t i) -> const scoring::TrainableRead& {
    return p.score->reads[static_cast<std::size_t>(rows[i].read)];
  };
  text += element_types("RowGradientOf", rows.size(), [&](std::size_t i) { return p.param(read_of(i).param).gradient.dtype; });
  std::vector<std::string> bins;
  const Writer writer(p, p.score->backward);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const scoring::TrainableRead& read = read_of(i);
    const Instr element{.param = read.param, .index = read.index};
    std::vector<ValueId> needed;
    std::string bin;
    for (std::size_t d = 0; d < read.index.size(); ++d) {
      if (!(rows[i].dims >> d & 1)) continue;
      needed.push_back(read.index[d]);
      const std::string index = writer.index_text(element, d);
      bin = bin.empty() ? index : base::join("(", bin, ") * ", p.param(read.param).param.shape()[d], " + ", index);
    }
    bins.push_back(writer.body(needed) + base::join("  return ", bin, ";\n"));
  }
  return text + numbered("template <int i>\nFOVEAL_DEVICE int row_bin(const Position& at, const ScoreArgs& args)", bins, "  return 0;\n");
}

/// The factor of each read, without what is the same for all pairs of a head (its unit), and where its term goes. traits: learn which
/// factors are 1.
std::string emit_read_functions(const Problem& p, const Given& given, std::vector<device::ReadTraits>& traits) {
  const auto& reads = p.score->reads;
  const Program& program = p.score->backward;
  std::vector<std::string> factors, units, indices, bins;
  if (!reads.empty()) {
    const Writer writer(p, program), with_given(p, program, given);
    for (const scoring::TrainableRead& read : reads) {
      const Writer::Hoisted factor = with_given.hoist_from_factor(read.factor);
      factors.push_back(with_given.body({read.factor}) + base::join("  return ", factor.rest, ";\n"));
      units.push_back(writer.body(factor.uniform_needs) + base::join("  return ", factor.uniform, ";\n"));
      traits[factors.size() - 1].factor_is_one = factor.rest == "1";
      const Instr element{.param = read.param, .index = read.index};
      std::string body = writer.body(read.index);
      for (std::size_t d = 0; d < read.index.size(); ++d) body += base::join("  index[", d, "] = ", writer.index_text(element, d), ";\n");
      indices.push_back(body);
      const std::string bin = writer.element_text(element);
      const bool binned = traits[bins.size()].bin_copies > 0;
      bins.push_back(binned ? with_given.body(read.index) + base::join("  return ", bin, ";\n") : "  return 0;\n");
    }
  }
  std::string text = numbered(base::join("template <int i, class At>\n", linkage_of(p), " real read_factor_in_units", pair_signature),
                              factors, "  return 0;\n");
  text += numbered(base::join("template <int i>\nFOVEAL_DEVICE real read_unit", head_signature), units, "  return 0;\n");
  text += numbered(base::join("template <int i, class At>\nFOVEAL_DEVICE int read_bin", pair_signature), bins, "  return 0;\n");
  return text + numbered(
                    "template <int i>\nFOVEAL_DEVICE void read_index(const Score& score, const Position& at, const ScoreArgs& args, int "
                    "(&index)[kMaxParamRank])",
                    indices, "");
}

/// All but what emit_read_functions() finds.
std::vector<device::ReadTraits> read_traits(const Problem& p, const Ahead& ahead, const std::vector<PlannedRead>& planned,
                                            const FiniteFactors& finite) {
  const Program& program = p.score->backward;
  const base::IdVector<Interval> bounds = problem::bounds_of(p, program);
  const auto is_finite = [&](ValueId value) {
    const Interval& factor = bounds[value];
    constexpr double most = 1e30;  // of fp32
    return factor.low >= -most && factor.high <= most && !factor.maybe_nan;
  };
  std::vector<device::ReadTraits> traits;
  for (std::size_t r = 0; r < p.score->reads.size(); ++r) {
    const scoring::TrainableRead& read = p.score->reads[r];
    const ReadFacts& facts = planned[r].facts;
    const ReadBins bins = r < ahead.bins.size() ? ahead.bins[r] : ReadBins{0, 0, facts.elements};
    const auto dimension = [&](std::uint8_t symbol) {  // the last one that depends on it
      int found = 0;
      for (std::size_t d = 0; d < read.index.size(); ++d)
        if (program.depends_on(read.index[d], symbol)) found = static_cast<int>(d);
      return found;
    };
    traits.push_back({.kind = kind_of(planned[r]),
                      .param = read.param,
                      .rank = static_cast<int>(read.index.size()),
                      .row_dim = dimension(scoring::depends_q),
                      .column_dim = dimension(scoring::depends_kv),
                      .stores = facts.storage == GradientStorage::stored,
                      .factor_is_one = false,
                      .factor_is_finite = is_finite(read.factor),
                      .factor_is_tame = r < finite.reads.size() && finite.reads[r],
                      .follows_from_dk = facts.follows_from_dk,
                      .has_terms = planned[r].has_terms(),
                      .is_early = planned[r].is_early(),
                      .is_staged = planned[r].is_staged(),
                      .bin_copies = bins.copies,
                      .bin_entries = bins.entries,
                      .bin_dims = pair_dimensions(program, read.index),
                      .bin_is_window = bins.is_window()});
  }
  return traits;
}

}  // namespace

std::string emit_reads(const Problem& p, const Given& given, const Ahead& ahead) {
  const std::vector<PlannedRead> planned = ahead.reads.empty() ? walked_reads(p) : ahead.reads;
  const FiniteFactors finite = finite_factors(p, ahead.lines);
  std::vector<device::ReadTraits> traits = read_traits(p, ahead, planned, finite);
  const std::string functions = emit_read_functions(p, given, traits);
  std::string text = base::join("constexpr int kReads = ", traits.size(), ";\n");
  text += array_text("ReadTraits", "kRead", traits);
  text += emit_values("key_value", finite.keys, "kKeyValues", p);
  text += "template <int r>\nstruct ReadGradientOf {\n  using type = real;\n};\n";
  for (std::size_t r = 0; r < traits.size(); ++r) {
    if (!traits[r].stores) continue;
    text += base::join("template <>\nstruct ReadGradientOf<", r,
                       "> {\n  using type = ", jit::device_type(p.params[planned[r].facts.param].gradient.dtype), ";\n};\n");
  }
  text += "template <int r>\nusing ReadGradient = typename ReadGradientOf<r>::type;\n" + functions;
  return ahead.rows.empty() ? text : text + emit_row_reads(p, ahead.rows);
}

}  // namespace cuda
}  // namespace foveal
