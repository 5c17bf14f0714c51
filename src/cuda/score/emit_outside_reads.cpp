// Reads whose index may leave their parameter, for Attention::checked.
#include <algorithm>

#include "cuda/score/emit_parts.h"
#include "score/bounds.h"

namespace foveal::cuda {
namespace {

/// An index that may leave its parameter.
struct LooseIndex {
  ValueId index;
  std::int32_t param;
  std::size_t dimension;
};
std::vector<LooseIndex> loose_indices(const Problem& p, const Program& program) {
  std::vector<LooseIndex> loose;
  if (program.empty()) return loose;
  const base::IdVector<Interval> bounds = problem::bounds_of(p, program);
  for (const Instr& instr : program.code) {
    if (instr.op != Op::read) continue;
    const auto& shape = p.param(instr.param).param.shape();
    for (std::size_t d = 0; d < instr.index.size(); ++d)
      if (!scoring::is_inside(bounds[instr.index[d]], shape[d])) loose.push_back({instr.index[d], instr.param, d});
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
  const bool reads_score = std::any_of(of_score.begin(), of_score.end(), [&](const LooseIndex& loose) {
    return p.score->forward.depends_on(loose.index, scoring::depends_score);
  });
  return base::join("constexpr bool kIndexReadsScore = ", truth(reads_score), ";\n",
                    "FOVEAL_DEVICE bool mask_reads_outside(const Position& at, const ScoreArgs& args, OutsideRead& read) {\n",
                    statements(p.score->mask), "}\n",
                    "FOVEAL_DEVICE bool score_reads_outside(const Score& score, const Position& at, const ScoreArgs& args, OutsideRead& "
                    "read) {\n",
                    statements(p.score->forward), "}\n");
}

}  // namespace foveal::cuda
