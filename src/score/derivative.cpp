#include "score/derivative.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "base/check.h"

namespace foveal::scoring {
namespace {

/// fn(operand) for each operand, once, whose tangent that of `instr` follows from.
template <class Fn>
void for_each_differentiated(const Graph& graph, const Instr& instr, Fn&& fn) {
  if (instr.type != Type::real || row(instr.op).derivative == nullptr) return;
  const auto& arg = instr.arg;  // not through indices, which have no derivative
  for (std::size_t i = 0; i < arg.size(); ++i)
    if (arg[i] >= 0 && graph.type(arg[i]) == Type::real && std::find(arg.begin(), arg.begin() + i, arg[i]) == arg.begin() + i) fn(arg[i]);
}

}  // namespace

Derivatives::Derivatives(Graph& graph, ValueId value) : graph_(graph), value_(value) {
  const ValueId count = value + 1;
  base::IdVector<char> needed(count, false);
  needed[value] = true;
  for (ValueId id = value; id >= 0; --id)
    if (needed[id]) for_each_differentiated(graph, graph[id], [&](ValueId arg) { needed[arg] = true; });
  first_user_ = base::IdVector<std::int32_t>(count + 1, 0);
  for (ValueId id = 0; id <= value; ++id)
    if (needed[id]) for_each_differentiated(graph, graph[id], [&](ValueId arg) { ++first_user_[arg + 1]; });
  for (ValueId id = 0; id <= value; ++id) first_user_[id + 1] += first_user_[id];
  users_.resize(static_cast<std::size_t>(first_user_[value + 1]));
  base::IdVector<std::int32_t> next = first_user_;
  for (ValueId id = 0; id <= value; ++id)
    if (needed[id]) for_each_differentiated(graph, graph[id], [&](ValueId arg) { users_[static_cast<std::size_t>(next[arg]++)] = id; });

  tangents_ = base::IdVector<ValueId>(count, zero_tangent);
  chain_ = place_ = base::IdVector<std::int32_t>(count, -1);
  for (ValueId id = 0; id <= value; ++id) {
    if (users(id).size() != 1) continue;
    const Instr& user = graph[users(id)[0]];
    if ((user.op != Op::add && user.op != Op::sub) || user.arg[0] != id || user.arg[1] == id) continue;
    if (chain_[id] < 0) {
      chain_[id] = static_cast<std::int32_t>(chains_.size()), place_[id] = 0;
      chains_.push_back({id});
    }
    std::vector<ValueId>& chain = chains_[static_cast<std::size_t>(chain_[id])];
    chain_[users(id)[0]] = chain_[id], place_[users(id)[0]] = place_[id] + 1;
    chain.push_back(users(id)[0]);
  }
}

std::span<const ValueId> Derivatives::users(ValueId id) const {
  return {users_.begin() + first_user_[id], users_.begin() + first_user_[id + 1]};
}

ValueId Derivatives::last_equal(ValueId id, ValueId limit) const {
  if (chain_[id] < 0) return id;
  const std::vector<ValueId>& chain = chains_[static_cast<std::size_t>(chain_[id])];
  const auto after = std::lower_bound(chain.begin() + place_[id] + 1, chain.end(), limit);
  return after[-1];
}

ValueId Derivatives::tangent_of(ValueId id) {
  if (++steps_ > max_steps)
    base::fail(ErrorCode::invalid_argument, "score_mod: its derivatives take more than ", max_steps,
               " steps; expected a smaller score, or one with fewer reads of trained parameters");
  TangentStep step{graph_, id, graph_[id].arg, {zero_tangent, zero_tangent, zero_tangent}};
  for (std::size_t i = 0; i < 3; ++i)
    if (step.arg[i] >= 0) step.tangent[i] = tangents_[step.arg[i]];
  return row(graph_[id].op).derivative(step);
}

ValueId Derivatives::by(ValueId variable) {
  if (variable > value_) return zero_tangent;  // operands have smaller ids
  std::vector<ValueId> touched;
  std::priority_queue<ValueId, std::vector<ValueId>, std::greater<>> pending;  // in order of ids: operands first
  const auto set = [&](ValueId id, ValueId tangent) {
    tangents_[id] = tangent;
    touched.push_back(id);
    if (tangent != zero_tangent)
      for (const ValueId user : users(id)) pending.push(user);
  };
  // Nothing that is pending enters a sum whose id is smaller.
  const auto spread = [&](ValueId id, ValueId tangent) {
    const ValueId last = last_equal(id, pending.empty() ? value_ + 1 : pending.top());
    if (last != id) tangents_[id] = tangent, touched.push_back(id);
    set(last, tangent);
  };
  spread(variable, graph_.real(1));
  while (!pending.empty()) {
    const ValueId id = pending.top();
    while (!pending.empty() && pending.top() == id) pending.pop();
    spread(id, tangent_of(id));
  }
  const ValueId result = tangents_[value_];
  for (const ValueId id : touched) tangents_[id] = zero_tangent;
  return result;
}

}  // namespace foveal::scoring
