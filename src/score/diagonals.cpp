#include "score/diagonals.h"

namespace foveal::scoring {

base::IdVector<char> functions_of_difference(const Graph& graph, ValueId last) {
  base::IdVector<char> known(last + 1, false);
  const auto balanced = [&](const Linear& sum, ValueId self) {  // q_idx and kv_idx enter as a multiple of q_idx - kv_idx
    std::int64_t balance = 0;
    for (const Linear::Term& term : sum.terms) {
      const Op op = graph[term.atom].op;
      if (op == Op::q_idx || op == Op::kv_idx) {
        balance += term.coefficient;
      } else if (term.atom == self || !known[term.atom]) {
        return false;
      }
    }
    return balance == 0;
  };
  for (ValueId id = 0; id <= last; ++id) {
    const Instr& instr = graph[id];
    if ((graph.depends(id) & (depends_q | depends_kv | depends_score)) == 0) {
      known[id] = true;
      continue;
    }
    if (graph.depends(id) & depends_score || is_position(instr.op)) continue;
    bool holds = true;
    for_each_operand(instr, [&](ValueId operand) { holds = holds && known[operand]; });
    if (!holds && instr.type == Type::integer) holds = balanced(graph.linear(id), id);
    if (!holds && is_comparison(instr.op) && graph.type(instr.arg[0]) == Type::integer)
      holds = balanced(combine(graph.linear(instr.arg[0]), graph.linear(instr.arg[1]), -1), id);
    known[id] = holds;
  }
  return known;
}

}  // namespace foveal::scoring
