#include "cuda/score_lines.h"

#include <algorithm>

#include "cuda/finite_factors.h"
#include "score/varies.h"

namespace foveal::cuda {
namespace {

using scoring::Program;
using scoring::ValueId;
using scoring::Varies;

constexpr std::size_t most = 4;  ///< of each kind: they take shared memory and registers

class Search {
 public:
  Search(const problem::Problem& problem, const Program& program, const std::vector<bool>& stepped, Varies along_walk)
      : problem_(problem), program_(program), stepped_(stepped), along_walk_(along_walk), seen_(program.code.size(), false) {}

  void visit(ValueId id) {
    const auto at = static_cast<std::size_t>(id);
    if (id < 0 || seen_[at]) return;
    seen_[at] = true;
    if (std::vector<ValueId>* kind = kind_of(at); kind != nullptr && kind->size() < most) {
      if (!stepped_[at]) kind->push_back(id);
      return;
    }
    for (const ValueId arg : program_.code[at].arg) visit(arg);
    for (const ValueId index : program_.code[at].index) visit(index);
  }

  LineValues found;

 private:
  std::vector<ValueId>* kind_of(std::size_t at) {
    const Varies over = scoring::varies(program_, static_cast<ValueId>(at));
    const Type type = program_.code[at].type;
    if (over == along_walk_ && (type == Type::real || (type == Type::integer && is_read(at)))) return &found.walk;
    return over == Varies::diagonal && type == Type::real ? &found.diagonal : nullptr;
  }

  /// Of an integer: one that a word holds. What is computed from a position takes few instructions.
  bool is_read(std::size_t at) const {
    const scoring::Instr& instr = program_.code[at];
    return instr.op == scoring::Op::read && size_of(problem_.params[static_cast<std::size_t>(instr.param)].tensor.dtype) <= 4;
  }

  const problem::Problem& problem_;
  const Program& program_;
  const std::vector<bool>& stepped_;
  Varies along_walk_;
  std::vector<bool> seen_;
};

}  // namespace

std::vector<ValueId> find_row_values(const problem::Problem& p) {
  if (!p.has_score_mod() || p.pass != Pass::forward) return {};
  const std::vector<bool> stepped(p.score->forward.code.size(), false);
  Search search(p, p.score->forward, stepped, Varies::row);
  search.visit(p.score->forward.outputs[0]);
  return search.found.walk.size() < most ? search.found.walk : std::vector<ValueId>{};
}

LineValues find_line_values(const problem::Problem& p, const std::vector<bool>& stepped) {
  if (!p.has_score_mod()) return {};
  const scoring::ScoreProgram& score = *p.score;
  if (p.pass == Pass::forward) {
    Search search(p, score.forward, stepped, Varies::column);
    search.visit(score.forward.outputs[0]);
    return search.found;
  }
  Search search(p, score.backward, stepped, Varies::row);
  search.visit(score.modified);
  search.visit(score.dscore);
  for (const scoring::TrainableRead& read : score.reads) {
    search.visit(read.factor);
    if (read.reduction != scoring::Reduction::scatter) continue;  // others have one for many pairs
    for (const scoring::ValueId index : read.index) search.visit(index);
  }
  search.found.checked = !finite_factors(p, search.found).walk.empty();
  return search.found;
}

}  // namespace foveal::cuda
