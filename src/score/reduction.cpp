#include "score/reduction.h"

#include <algorithm>

#include "base/enum_name.h"
#include "score/varies.h"

namespace foveal::scoring {
namespace {

/// symbol + constant
bool is_shifted(const Graph& graph, ValueId id, Op symbol) {
  const Linear sum = graph.linear(id);
  return sum.terms.size() == 1 && sum.terms[0].coefficient == 1 && graph[sum.terms[0].atom].op == symbol;
}

}  // namespace

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

const char* to_string(Reduction reduction) {
  return base::enum_name(reduction, {"uniform", "row", "column", "diagonal", "element", "scatter"});
}

Reduction classify_reduction(const Graph& graph, const std::vector<ValueId>& index, const base::IdVector<char>& diagonal) {
  std::uint8_t depends = 0;
  for (ValueId id : index) depends |= graph.depends(id);
  if (depends & depends_score) return Reduction::scatter;
  if (const Varies over = varies(depends, false); over != Varies::pair)
    return over == Varies::uniform ? Reduction::uniform : over == Varies::row ? Reduction::row : Reduction::column;
  int rows = 0, columns = 0, others = 0;
  for (ValueId id : index) {
    if ((graph.depends(id) & (depends_q | depends_kv)) == 0) continue;
    const bool row = is_shifted(graph, id, Op::q_idx), column = is_shifted(graph, id, Op::kv_idx);
    rows += row, columns += column, others += !row && !column;
  }
  if (rows == 1 && columns == 1 && others == 0) return Reduction::element;
  const bool all = std::all_of(index.begin(), index.end(), [&](ValueId id) { return diagonal[id]; });
  return all ? Reduction::diagonal : Reduction::scatter;
}

}  // namespace foveal::scoring
