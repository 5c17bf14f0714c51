#include "cuda/score/score_lines.h"

#include <utility>

#include "cuda/score/finite_factors.h"
#include "cuda/score/score_facts.h"
#include "cuda/score/score_forms.h"
#include "score/varies.h"

namespace foveal::cuda {
namespace {

using scoring::Program;
using scoring::ValueId;
using scoring::Varies;

constexpr std::size_t most = 4;  ///< of each kind: they take shared memory and registers

class Search {
 public:
  /// skipped: values that are not hoisted, as they are cheaper where they are used.
  Search(const problem::Problem& problem, const Program& program, Varies along_walk, base::IdVector<char> skipped)
      : problem_(problem),
        program_(program),
        along_walk_(along_walk),
        skipped_(std::move(skipped)),
        doubles_(double_values(problem, program)),
        seen_(program.size(), false) {}

  void visit(ValueId id) {
    if (seen_[id]) return;
    seen_[id] = true;
    if (std::vector<ValueId>* kind = kind_of(id); kind != nullptr && kind->size() < most) {
      if (!skipped_[id]) kind->push_back(id);
      return;
    }
    scoring::for_each_operand(program_[id], [this](ValueId operand) { visit(operand); });
  }

  LineValues found;

 private:
  std::vector<ValueId>* kind_of(ValueId id) {
    const Varies over = scoring::varies(program_, id);
    const Type type = program_[id].type;
    if (doubles_[id]) return nullptr;
    if (over == along_walk_ && (type == Type::real || (type == Type::integer && is_read(program_[id])))) return &found.walk;
    return over == Varies::diagonal && type == Type::real ? &found.diagonal : nullptr;
  }

  /// Of an integer: one that a word holds. What is computed from a position takes few instructions.
  bool is_read(const scoring::Instr& instr) const {
    return instr.op == scoring::Op::read && size_of(problem_.param(instr.param).tensor.dtype) <= 4;
  }

  const problem::Problem& problem_;
  const Program& program_;
  const Varies along_walk_;
  const base::IdVector<char> skipped_, doubles_;
  base::IdVector<char> seen_;
};

}  // namespace

std::vector<ValueId> find_row_values(const problem::Problem& p) {
  if (!p.has_score_mod() || p.pass != Pass::forward) return {};
  Search search(p, p.score->forward, Varies::row, base::IdVector<char>(p.score->forward.size()));
  search.visit(p.score->forward.outputs[0]);
  return search.found.walk.size() < most ? search.found.walk : std::vector<ValueId>{};
}

std::vector<ValueId> find_long_row_values(const ScoreForms& forms, const std::vector<ValueId>& row_values) {
  constexpr int fewest = 20;  // instructions
  std::vector<ValueId> values = row_values;
  std::erase_if(values, [&](ValueId id) { return forms.instructions_for({id}) < fewest; });
  return values;
}

LineValues find_line_values(const problem::Problem& p) {
  return p.has_score_mod() ? find_line_values(ScoreForms(p, program_of(p))) : LineValues{};
}

LineValues find_line_values(const ScoreForms& forms) {
  const problem::Problem& p = forms.problem();
  const scoring::ScoreProgram& score = *p.score;
  if (p.pass == Pass::forward) {
    Search search(p, score.forward, Varies::column, affine_values(forms));
    search.visit(score.forward.outputs[0]);
    return search.found;
  }
  Search search(p, score.backward, Varies::row, affine_values(forms));
  search.visit(score.modified);
  search.visit(score.dscore);
  for (const scoring::TrainableRead& read : score.reads) {
    search.visit(read.factor);
    if (read.over != Varies::pair || read.own_elements) continue;  // others have one for many pairs
    for (const scoring::ValueId index : read.index) search.visit(index);
  }
  search.found.checked = !finite_factors(p, search.found).walk.empty();
  return search.found;
}

}  // namespace foveal::cuda
