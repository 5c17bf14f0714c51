#pragma once
// The graph of one tape program before slots are assigned; equal nodes are the same node (CSE).
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "base/id_vector.h"
#include "cpu/tape_compile.h"

namespace foveal::cpu {

using NodeId = std::int32_t;
constexpr NodeId no_node = -1;

/// Also the bounds of an unlimited range of keys.
constexpr std::int32_t lowest_integer = INT32_MIN, highest_integer = INT32_MAX;

enum class Result : std::uint8_t { real, word, word64 };

constexpr Result result_of(TapeOp op) {
  constexpr Result results[] = {
#define FOVEAL_X(op, result) Result::result,
      FOVEAL_TAPE_OPS(FOVEAL_X)
#undef FOVEAL_X
  };
  return results[static_cast<std::size_t>(op)];
}

constexpr bool gives_real(TapeOp op) { return result_of(op) == Result::real; }

constexpr bool is_sum(TapeOp op) { return op == TapeOp::sum_keys || op == TapeOp::sum_lanes || op == TapeOp::sum_diagonals; }

/// A step, or a value of the caller's tiles or of the frame.
struct Node {
  TapeOp op{};
  Varies rank{};
  bool wide = false;          ///< double in a tile of floats
  Space space = Space::none;  ///< of a value of the caller's tiles or of the frame; none: a step
  std::array<NodeId, 3> arg{no_node, no_node, no_node};
  double real = 0;
  std::int64_t integer = 0;
  int place = -1;

  /// A real by its bits: 0 is not -0, and NaN, which is no less than any number, would be found as one of them.
  auto key() const { return std::tuple(op, rank, wide, space, arg, std::bit_cast<std::uint64_t>(real), integer, place); }
};

/// The address of a read or of an accumulation.
struct PlaceNode {
  int param;
  std::vector<NodeId> index;
  TapeLayout layout;
  auto operator<=>(const PlaceNode&) const = default;
};

class TapeNodes {
 public:
  explicit TapeNodes(const TapeSource& source) : source_(source) {}
  TapeNodes(const TapeNodes&) = delete;
  TapeNodes& operator=(const TapeNodes&) = delete;

  const TapeSource& source() const { return source_; }
  const Node& operator[](NodeId id) const { return nodes_[id]; }
  NodeId size() const { return nodes_.size(); }
  const PlaceNode& place(int number) const { return places_[static_cast<std::size_t>(number)]->first; }

  NodeId add(const Node& node);
  NodeId given(Space space, Varies rank) { return add({.rank = rank, .space = space}); }
  NodeId dots() { return given(Space::input, Varies::pair); }
  NodeId ds() { return given(Space::output, Varies::pair); }

  NodeId real(double value, bool wide) { return add({.op = TapeOp::constant_r, .wide = wide && !source_.f64, .real = value}); }
  NodeId integer(std::int64_t value);
  NodeId integer64(std::int64_t value) { return add({.op = TapeOp::constant_l, .integer = value}); }
  NodeId boolean(bool value) { return add({.op = TapeOp::constant_i, .integer = value ? -1 : 0}); }

  NodeId make(TapeOp op, NodeId a, NodeId b = no_node, NodeId c = no_node, bool wide = false);
  NodeId make_ranked(TapeOp op, Varies rank, NodeId a, int place = -1) {
    return add({.op = op, .rank = rank, .arg = {a, no_node, no_node}, .place = place});
  }
  /// Never shared with an equal node: the caller's tile is written last, after all reads of it.
  NodeId make_output(TapeOp op, NodeId a, NodeId b) { return nodes_.add({.op = op, .rank = Varies::pair, .arg = {a, b, no_node}}); }

  /// The number of an address; `layout` says how the parameter (or the accumulator) lies in memory.
  int place(int param, std::vector<NodeId> index, const TapeLayout& layout);
  Varies rank_of_place(int number) const;
  NodeId read(TapeOp op, int number, bool wide) {
    return add({.op = op, .rank = rank_of_place(number), .wide = wide && !source_.f64, .place = number});
  }

  /// Calls fn(operand) for each operand of `node`, the indices of its address included.
  template <class Fn>
  void each_operand(const Node& node, Fn fn) const {
    for (NodeId arg : node.arg)
      if (arg != no_node) fn(arg);
    if (node.place >= 0)
      for (NodeId index : place(node.place).index) fn(index);
  }
  /// How often each node is needed for the roots.
  base::IdVector<int> count_uses(const std::vector<NodeId>& roots) const;
  /// Fuses a * b + c where the product has no other use and the same rank (otherwise it is cheaper alone).
  void fuse_multiply_adds(const base::IdVector<int>& uses);

  /// Bytes of one element of a node's value.
  int element_of(const Node& node) const {
    const Result result = node.space == Space::none ? result_of(node.op) : Result::word;
    return result == Result::word64 || (result == Result::real && (node.wide || source_.f64)) ? 8 : 4;
  }

 private:
  const TapeSource& source_;
  base::IdVector<Node> nodes_;
  std::map<decltype(Node{}.key()), NodeId> known_;
  std::map<PlaceNode, int> place_numbers_;
  std::vector<std::map<PlaceNode, int>::const_iterator> places_;  ///< by number
};

/// Steps for the roots (in this order, at the end of their sections) and all they need. `output`: the node written to the caller's tile,
/// last of all, or no_node. slots: the slot of each node.
CompiledTape assemble(TapeNodes& nodes, std::vector<NodeId> roots, NodeId output, base::IdVector<TapeOperand>* slots = nullptr);

}  // namespace foveal::cpu
