#include "cuda/tune/score_facts.h"

#include <algorithm>

namespace foveal::cuda {

bool evaluates_special_functions(const problem::Problem& p) {
  using scoring::Op;
  constexpr Op special[] = {Op::exp, Op::exp2, Op::log, Op::log2, Op::sqrt, Op::rsqrt, Op::tanh, Op::sigmoid};
  constexpr unsigned pair = scoring::depends_q | scoring::depends_kv;
  const scoring::Program& program = p.score->forward;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const unsigned depends = program.depends[i];
    if (((depends & scoring::depends_score) || (depends & pair) == pair) &&
        std::find(std::begin(special), std::end(special), program.code[i].op) != std::end(special))
      return true;
  }
  return false;
}

bool is_light(const problem::Problem& p) {
  const scoring::Program& program = p.pass == Pass::forward ? p.score->forward : p.score->backward;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const scoring::Op op = program.code[i].op;
    const bool light = op == scoring::Op::score || op == scoring::Op::add || op == scoring::Op::sub || op == scoring::Op::mul;
    if ((program.depends[i] & scoring::depends_score) != 0 && !light) return false;
  }
  return true;
}

bool reads_pairs(const problem::Problem& p, std::uint8_t besides, const std::vector<PairTile>& tiles) {
  const scoring::Program& program = p.pass == Pass::forward ? p.score->forward : p.score->backward;
  constexpr std::uint8_t pair = scoring::depends_q | scoring::depends_kv;
  for (std::size_t i = 0; i < program.code.size(); ++i) {
    const auto same = [&](const PairTile& tile) { return tile.read == static_cast<scoring::ValueId>(i); };
    if (program.code[i].op == scoring::Op::read && (program.depends[i] & (pair | besides)) == pair && !program.along_diagonals[i] &&
        std::none_of(tiles.begin(), tiles.end(), same))
      return true;
  }
  return false;
}

bool sequences_share_pairs(const problem::Problem& p) { return p.batch > 1 && reads_pairs(p, scoring::depends_batch); }

bool comes_from(const scoring::Program& program, scoring::ValueId value, scoring::ValueId source) {
  std::vector<bool> reached(program.code.size(), false);
  reached[static_cast<std::size_t>(source)] = true;
  for (std::size_t i = static_cast<std::size_t>(source) + 1; i < program.code.size(); ++i) {
    const auto is = [&](scoring::ValueId id) { return id >= 0 && reached[static_cast<std::size_t>(id)]; };
    reached[i] = std::any_of(program.code[i].arg.begin(), program.code[i].arg.end(), is) ||
                 std::any_of(program.code[i].index.begin(), program.code[i].index.end(), is);
  }
  return reached[static_cast<std::size_t>(value)];
}

int reads_along(const problem::Problem& p, scoring::Reduction lines) {
  return static_cast<int>(
      std::count_if(p.score->reads.begin(), p.score->reads.end(), [&](const auto& read) { return read.reduction == lines; }));
}

int staged_reads(const problem::Problem& p) {
  return reads_along(p, scoring::Reduction::row) + reads_along(p, scoring::Reduction::diagonal);
}

bool is_added_later(const problem::Problem& p, const scoring::TrainableRead& read) {
  return gradient_storage(p, static_cast<std::size_t>(read.param)) == GradientStorage::added;
}

bool has_terms(const problem::Problem& p) {
  return std::any_of(p.score->reads.begin(), p.score->reads.end(),
                     [&](const auto& read) { return !is_added_later(p, read) && !follows_from_dk(p, read); });
}

int early_reads(const problem::Problem& p) {
  const auto of_score = [&](scoring::ValueId id) {
    return (p.score->backward.depends[static_cast<std::size_t>(id)] & scoring::depends_score) != 0;
  };
  return static_cast<int>(std::count_if(p.score->reads.begin(), p.score->reads.end(), [&](const scoring::TrainableRead& read) {
    return of_score(p.score->dscore) || (of_score(read.factor) && !follows_from_dk(p, read));
  }));
}

}  // namespace foveal::cuda
