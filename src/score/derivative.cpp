#include "score/derivative.h"

namespace foveal::scoring {

ValueId differentiate(Graph& graph, ValueId value, ValueId variable) {
  const auto count = static_cast<std::size_t>(value) + 1;  // operands have smaller ids
  std::vector<ValueId> tangent(count, zero_tangent);
  if (static_cast<std::size_t>(variable) >= count) return zero_tangent;
  tangent[static_cast<std::size_t>(variable)] = graph.real(1);
  std::vector<bool> needed(count, false);
  needed[count - 1] = true;
  for (std::size_t id = count; id-- > 0;) {
    if (!needed[id]) continue;
    for (ValueId arg : graph[static_cast<ValueId>(id)].arg)
      if (arg >= 0) needed[static_cast<std::size_t>(arg)] = true;
  }
  for (std::size_t id = static_cast<std::size_t>(variable) + 1; id < count; ++id) {
    const Instr instr = graph[static_cast<ValueId>(id)];
    if (!needed[id] || instr.type != Type::real || row(instr.op).derivative == nullptr) continue;
    TangentStep step{graph, static_cast<ValueId>(id), instr.arg, {zero_tangent, zero_tangent, zero_tangent}};
    bool depends = false;
    for (std::size_t i = 0; i < 3; ++i) {
      if (instr.arg[i] >= 0) step.tangent[i] = tangent[static_cast<std::size_t>(instr.arg[i])];
      depends |= step.tangent[i] != zero_tangent;
    }
    if (depends) tangent[id] = row(instr.op).derivative(step);
  }
  return tangent[count - 1];
}

}  // namespace foveal::scoring
