#include "score/reduction.h"

#include <algorithm>

#include "score/op_table.h"
#include "score/varies.h"

namespace foveal::scoring {
namespace {

bool is_shifted(const Graph& graph, ValueId id, Op symbol) {
  const Linear sum = graph.linear(id);
  return sum.terms.size() == 1 && sum.terms[0].coefficient == 1 && graph[sum.terms[0].atom].op == symbol;
}

}  // namespace

std::vector<bool> functions_of_difference(const Graph& graph, ValueId last) {
  std::vector<bool> known(static_cast<std::size_t>(last) + 1, false);
  const auto sum_is = [&](const Linear& sum, ValueId self) {
    std::int64_t balance = 0;  // of q_idx against kv_idx
    for (const Linear::Term& term : sum.terms) {
      const Op op = graph[term.atom].op;
      if (op == Op::q_idx || op == Op::kv_idx) {
        balance += term.coefficient;
      } else if (term.atom == self || !known[static_cast<std::size_t>(term.atom)]) {
        return false;
      }
    }
    return balance == 0;
  };
  for (ValueId id = 0; id <= last; ++id) {
    const Instr& instr = graph[id];
    bool is = false;
    if ((graph.depends(id) & (depends_q | depends_kv | depends_score)) == 0) {
      is = true;
    } else if (graph.depends(id) & depends_score || instr.op == Op::q_idx || instr.op == Op::kv_idx) {
      is = false;
    } else {
      const auto holds = [&](ValueId operand) { return operand < 0 || known[static_cast<std::size_t>(operand)]; };
      is = std::all_of(instr.arg.begin(), instr.arg.end(), holds) && std::all_of(instr.index.begin(), instr.index.end(), holds);
      const bool compares = instr.op == Op::eq || instr.op == Op::ne || instr.op == Op::lt || instr.op == Op::le;
      if (!is && instr.type == Type::integer) is = sum_is(graph.linear(id), id);
      if (!is && compares && graph.type(instr.arg[0]) == Type::integer) {
        is = sum_is(combine(graph.linear(instr.arg[0]), graph.linear(instr.arg[1]), -1), id);
      }
    }
    known[static_cast<std::size_t>(id)] = is;
  }
  return known;
}

const char* to_string(Reduction reduction) {
  switch (reduction) {
    case Reduction::uniform:
      return "uniform";
    case Reduction::row:
      return "row";
    case Reduction::column:
      return "column";
    case Reduction::diagonal:
      return "diagonal";
    case Reduction::element:
      return "element";
    case Reduction::scatter:
      return "scatter";
  }
  return "?";
}

Reduction classify_reduction(const Graph& graph, const std::vector<ValueId>& index) {
  std::uint8_t depends = 0;
  for (ValueId id : index) depends |= graph.depends(id);
  if (depends & depends_score) return Reduction::scatter;
  if (const Varies over = varies(depends, false); over != Varies::pair)
    return over == Varies::uniform ? Reduction::uniform : over == Varies::row ? Reduction::row : Reduction::column;
  int rows = 0, columns = 0, others = 0;
  for (ValueId id : index) {
    if ((graph.depends(id) & (depends_q | depends_kv)) == 0) continue;
    rows += is_shifted(graph, id, Op::q_idx);
    columns += is_shifted(graph, id, Op::kv_idx);
    others += !is_shifted(graph, id, Op::q_idx) && !is_shifted(graph, id, Op::kv_idx);
  }
  if (rows == 1 && columns == 1 && others == 0) return Reduction::element;
  const std::vector<bool> diagonal = functions_of_difference(graph, *std::max_element(index.begin(), index.end()));
  const bool all = std::all_of(index.begin(), index.end(), [&](ValueId id) { return diagonal[static_cast<std::size_t>(id)]; });
  return all ? Reduction::diagonal : Reduction::scatter;
}

}  // namespace foveal::scoring
