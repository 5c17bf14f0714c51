#include "score/derivative.h"

namespace foveal::scoring {

ValueId differentiate(Graph& graph, ValueId value, ValueId variable) {
  if (variable > value) return zero_tangent;  // operands have smaller ids
  base::IdVector<char> needed(value + 1, false);
  needed[value] = true;
  for (ValueId id = value; id > variable; --id)
    for (const ValueId arg : graph[id].arg)  // not through indices, which have no derivative
      if (needed[id] && arg >= 0) needed[arg] = true;
  base::IdVector<ValueId> tangent(value + 1, zero_tangent);
  tangent[variable] = graph.real(1);
  for (ValueId id = variable + 1; id <= value; ++id) {
    const Instr instr = graph[id];
    if (!needed[id] || instr.type != Type::real || row(instr.op).derivative == nullptr) continue;
    TangentStep step{graph, id, instr.arg, {zero_tangent, zero_tangent, zero_tangent}};
    bool depends = false;
    for (std::size_t i = 0; i < 3; ++i) {
      if (instr.arg[i] >= 0) step.tangent[i] = tangent[instr.arg[i]];
      depends |= step.tangent[i] != zero_tangent;
    }
    if (depends) tangent[id] = row(instr.op).derivative(step);
  }
  return tangent[value];
}

}  // namespace foveal::scoring
