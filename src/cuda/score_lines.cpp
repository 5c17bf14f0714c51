#include "cuda/score_lines.h"

#include <algorithm>

namespace foveal::cuda {
namespace {

using scoring::Program;
using scoring::ValueId;

constexpr std::size_t most = 4;  ///< of each kind: they take shared memory and registers

class Search {
 public:
  Search(const Program& program, const std::vector<bool>& stepped, std::uint8_t along_walk)
      : program_(program), stepped_(stepped), along_walk_(along_walk), seen_(program.code.size(), false) {}

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
    constexpr std::uint8_t positions = scoring::depends_score | scoring::depends_q | scoring::depends_kv;
    const std::uint8_t depends = program_.depends[at] & positions;
    if (program_.code[at].type != Type::real || depends == 0) return nullptr;
    if (depends == along_walk_) return &found.walk;
    return depends == (scoring::depends_q | scoring::depends_kv) && program_.along_diagonals[at] ? &found.diagonal : nullptr;
  }

  const Program& program_;
  const std::vector<bool>& stepped_;
  std::uint8_t along_walk_;
  std::vector<bool> seen_;
};

}  // namespace

LineValues find_line_values(const problem::Problem& p, const std::vector<bool>& stepped) {
  if (!p.has_score_mod()) return {};
  const scoring::ScoreProgram& score = *p.score;
  if (p.pass == Pass::forward) {
    Search search(score.forward, stepped, scoring::depends_kv);
    search.visit(score.forward.outputs[0]);
    return search.found;
  }
  Search search(score.backward, stepped, scoring::depends_q);
  search.visit(score.modified);
  search.visit(score.dscore);
  for (const scoring::TrainableRead& read : score.reads) search.visit(read.factor);
  return search.found;
}

}  // namespace foveal::cuda
