#include "cpu/tape_nodes.h"

#include <algorithm>

namespace foveal::cpu {

NodeId TapeNodes::add(const Node& node) {
  const auto [at, added] = known_.try_emplace(node.key(), nodes_.size());
  if (added) nodes_.add(node);
  return at->second;
}

NodeId TapeNodes::integer(std::int64_t value) {
  const auto saturated = std::clamp<std::int64_t>(value, lowest_integer, highest_integer);
  return add({.op = TapeOp::constant_i, .integer = saturated});
}

NodeId TapeNodes::make(TapeOp op, NodeId a, NodeId b, NodeId c, bool wide) {
  Node node{.op = op, .wide = wide && !source_.f64, .arg = {a, b, c}};
  for (NodeId arg : node.arg)
    if (arg != no_node) node.rank = join(node.rank, nodes_[arg].rank);
  return add(node);
}

int TapeNodes::place(int param, std::vector<NodeId> index, const TapeLayout& layout) {
  const auto [at, added] = place_numbers_.try_emplace({param, std::move(index), layout}, static_cast<int>(places_.size()));
  if (added) places_.push_back(at);
  return at->second;
}

Varies TapeNodes::rank_of_place(int number) const {
  Varies rank = Varies::uniform;
  for (NodeId index : place(number).index) rank = join(rank, nodes_[index].rank);
  return rank;
}

base::IdVector<int> TapeNodes::count_uses(const std::vector<NodeId>& roots) const {
  base::IdVector<int> uses(size(), 0);
  for (NodeId root : roots) ++uses[root];
  for (NodeId id = size(); id-- > 0;)
    if (uses[id] > 0) each_operand(nodes_[id], [&](NodeId arg) { ++uses[arg]; });
  return uses;
}

void TapeNodes::fuse_multiply_adds(const base::IdVector<int>& uses) {
  for (Node& node : nodes_) {
    if (node.op != TapeOp::add_r && node.op != TapeOp::sub_r) continue;
    const auto is_product = [&](NodeId id) {
      const Node& arg = nodes_[id];
      return arg.op == TapeOp::mul_r && arg.space == Space::none && arg.wide == node.wide && arg.rank == node.rank && uses[id] == 1;
    };
    const auto [a, b, unused] = node.arg;
    if (is_product(a)) {
      node.op = node.op == TapeOp::add_r ? TapeOp::mul_add : TapeOp::mul_sub;
      node.arg = {nodes_[a].arg[0], nodes_[a].arg[1], b};
    } else if (is_product(b)) {
      node.op = node.op == TapeOp::add_r ? TapeOp::mul_add : TapeOp::sub_mul;
      node.arg = {nodes_[b].arg[0], nodes_[b].arg[1], a};
    }
  }
}

}  // namespace foveal::cpu
