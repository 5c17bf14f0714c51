// Trained reads: factors, indices and bins of their terms.
#include <algorithm>

#include "cuda/device/score/read_kind.cuh"
#include "cuda/score/emit_parts.h"
#include "cuda/score/finite_factors.h"

namespace foveal::cuda {
namespace {

using scoring::Reduction;
static_assert(int(Reduction::uniform) == device::kUniform && int(Reduction::row) == device::kRow &&
              int(Reduction::column) == device::kColumn && int(Reduction::diagonal) == device::kDiagonal &&
              int(Reduction::element) == device::kElement && int(Reduction::scatter) == device::kScatter);

/// What a kernel needs that sums the reads of a table for each query.
std::string emit_row_reads(const Problem& p, const std::vector<RowRead>& rows) {
  std::string text = base::join("constexpr int kRowReads = ", rows.size(), ";\n");
  text += integers("kRowRead", rows.size(), [&](std::size_t i) { return rows[i].read; });
  text += integers("kRowEntries", rows.size(), [&](std::size_t i) { return rows[i].entries; });
  text += integers("kRowRun", rows.size(), [&](std::size_t i) { return rows[i].run; });
  text += integers("kRowDims", rows.size(), [&](std::size_t i) { return rows[i].dims; });
  text += flags("kRowRepeats", rows.size(), [&](std::size_t i) { return rows[i].repeats; });
  text += flags("kRowDistinct", rows.size(), [&](std::size_t i) { return rows[i].distinct; });
  text += flags("kRowAny", rows.size(), [&](std::size_t i) { return rows[i].bins() == device::RowBins::any; });
  text += flags("kRowStored", rows.size(), [&](std::size_t i) { return rows[i].stored; });
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

/// The factor of each read, without what is the same for all pairs of a head (its unit), and where its term goes.
std::string emit_read_functions(const Problem& p, const Given& given, const std::vector<ReadBins>& bins_of_reads) {
  const auto& reads = p.score->reads;
  const Program& program = p.score->backward;
  std::vector<std::string> factors, units, indices, bins;
  std::vector<bool> ones;
  if (!reads.empty()) {
    const Writer writer(p, program), with_given(p, program, given);
    for (const scoring::TrainableRead& read : reads) {
      const Writer::Hoisted factor = with_given.hoist_from_factor(read.factor);
      factors.push_back(with_given.body({read.factor}) + base::join("  return ", factor.rest, ";\n"));
      units.push_back(writer.body(factor.uniform_needs) + base::join("  return ", factor.uniform, ";\n"));
      ones.push_back(factor.rest == "1");
      const Instr element{.param = read.param, .index = read.index};
      std::string body = writer.body(read.index);
      for (std::size_t d = 0; d < read.index.size(); ++d) body += base::join("  index[", d, "] = ", writer.index_text(element, d), ";\n");
      indices.push_back(body);
      const std::string bin = writer.element_text(element);
      const std::size_t number = bins.size();
      bins.push_back(number < bins_of_reads.size() && bins_of_reads[number].copies > 0
                         ? with_given.body(read.index) + base::join("  return ", bin, ";\n")
                         : "  return 0;\n");
    }
  }
  std::string text = flags("kFactorIsOne", ones.size(), [&](std::size_t r) { return ones[r]; });
  text += numbered(base::join("template <int i, class At>\n", linkage_of(p), " real read_factor_in_units", pair_signature), factors,
                   "  return 0;\n");
  text += numbered(base::join("template <int i>\nFOVEAL_DEVICE real read_unit", head_signature), units, "  return 0;\n");
  text += numbered(base::join("template <int i, class At>\nFOVEAL_DEVICE int read_bin", pair_signature), bins, "  return 0;\n");
  return text + numbered(
                    "template <int i>\nFOVEAL_DEVICE void read_index(const Score& score, const Position& at, const ScoreArgs& args, int "
                    "(&index)[kMaxParamRank])",
                    indices, "");
}

}  // namespace

std::string emit_reads(const Problem& p, const Given& given, const Ahead& ahead) {
  const auto& reads = p.score->reads;
  const Program& program = p.score->backward;
  const std::vector<PlannedRead> planned = ahead.reads.empty() ? walked_reads(p) : ahead.reads;
  const auto facts = [&](std::size_t r) -> const ReadFacts& { return planned[r].facts; };
  // An element that is not stored is left alone.
  const auto kind = [&](std::size_t r) { return planned[r].has_own_kernel() ? Reduction::element : facts(r).kind; };
  const std::size_t count = reads.size();
  std::string text = base::join("constexpr int kReads = ", count, ";\n");
  text += integers("kReadKind", count, [&](std::size_t r) { return static_cast<int>(kind(r)); });
  text += integers("kReadParam", count, [&](std::size_t r) { return reads[r].param; });
  text += integers("kReadRank", count, [&](std::size_t r) { return reads[r].index.size(); });
  const auto dimension = [&](std::size_t r, std::uint8_t symbol) {  // the last one that depends on it
    std::size_t found = 0;
    for (std::size_t d = 0; d < reads[r].index.size(); ++d)
      if (program.depends_on(reads[r].index[d], symbol)) found = d;
    return found;
  };
  text += integers("kReadRowDim", count, [&](std::size_t r) { return dimension(r, scoring::depends_q); });
  text += integers("kReadColumnDim", count, [&](std::size_t r) { return dimension(r, scoring::depends_kv); });
  text += flags("kReadStores", count, [&](std::size_t r) { return facts(r).storage == GradientStorage::stored; });
  text += flags("kFactorOfScore", count, [&](std::size_t r) { return facts(r).factor_of_score; });
  text += flags("kFollowsFromDk", count, [&](std::size_t r) { return facts(r).follows_from_dk; });
  const auto bins_of = [&](std::size_t r) { return r < ahead.bins.size() ? ahead.bins[r] : ReadBins{0, 0, facts(r).elements}; };
  text += integers("kBinCopies", count, [&](std::size_t r) { return bins_of(r).copies; });
  text += integers("kBinEntries", count, [&](std::size_t r) { return bins_of(r).entries; });
  text += flags("kBinWindow", count, [&](std::size_t r) { return bins_of(r).is_window(); });
  text += integers("kBinDims", count, [&](std::size_t r) { return pair_dimensions(program, reads[r].index); });
  const base::IdVector<Interval> bounds = bounds_of(program, p);
  text += flags("kFactorIsFinite", count, [&](std::size_t r) {
    const Interval& factor = bounds[reads[r].factor];
    constexpr double most = 1e30;  // of fp32
    return factor.low >= -most && factor.high <= most && !factor.maybe_nan;
  });
  const FiniteFactors finite = finite_factors(p, ahead.lines);
  text += flags("kFactorIsTame", count, [&](std::size_t r) { return r < finite.reads.size() && finite.reads[r]; });
  text += emit_values("key_value", finite.keys, "kKeyValues", p);
  text += "template <int r>\nstruct ReadGradientOf {\n  using type = real;\n};\n";
  for (std::size_t r = 0; r < count; ++r) {
    if (facts(r).storage != GradientStorage::stored) continue;
    text += base::join("template <>\nstruct ReadGradientOf<", r,
                       "> {\n  using type = ", device_type(p.params[facts(r).param].gradient.dtype), ";\n};\n");
  }
  text += "template <int r>\nusing ReadGradient = typename ReadGradientOf<r>::type;\n";

  text += emit_read_functions(p, given, ahead.bins);
  return ahead.rows.empty() ? text : text + emit_row_reads(p, ahead.rows);
}

}  // namespace foveal::cuda
