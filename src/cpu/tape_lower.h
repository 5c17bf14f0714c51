#pragma once
// Lowers one score program to tape nodes: precision, sums of integers by rank, constant factors.
#include <array>
#include <initializer_list>

#include "cpu/tape_nodes.h"
#include "score/linear.h"

namespace foveal::cpu {

class Lowering {
 public:
  Lowering(TapeNodes& nodes, const scoring::Program& program);

  const scoring::Instr& operator[](scoring::ValueId id) const { return program_[id]; }
  bool is_constant(scoring::ValueId id, double value) const;
  scoring::ValueId kv_idx() const { return kv_; }

  /// The value in the tile's precision; and that times a constant.
  NodeId plain(scoring::ValueId id) const { return narrow_[id]; }
  NodeId times(scoring::ValueId id, double factor) {
    int budget = 64;
    return scaled(id, factor, budget);
  }

  /// Whether terms of an integer comparison must not be moved across it, because sums of them may overflow 32 bits.
  bool is_rigid(scoring::ValueId id) const { return is_wide(id); }

  /// An integer as a linear sum, and the node of such a sum.
  const scoring::Linear& linear(scoring::ValueId id) const { return linear_[id]; }
  std::vector<scoring::Linear> without_abs(const scoring::Linear& sum) const { return scoring::without_abs(program_, linear_, sum); }
  NodeId sum(const scoring::Linear& linear);
  NodeId plus(NodeId a, NodeId b);
  NodeId negated(NodeId a);
  /// -linear in 64 bits.
  NodeId negated_sum64(const scoring::Linear& linear);

 private:
  using ValueId = scoring::ValueId;
  /// The parts of a sum by rank.
  struct Sums {
    std::array<NodeId, 5> of{no_node, no_node, no_node, no_node, no_node};
    NodeId& operator[](Varies rank) { return of[static_cast<std::size_t>(rank)]; }
    NodeId operator[](Varies rank) const { return of[static_cast<std::size_t>(rank)]; }
  };

  bool is_real(ValueId id) const { return program_[id].type == Type::real; }

  bool is_wide(ValueId id) const { return flags_.size() > 0 && flags_[id]; }
  bool has_wide_operand(const scoring::Instr& instr) const;
  base::IdVector<scoring::Linear> linear_forms() const;
  NodeId in_64_bits(ValueId id);
  NodeId lower(ValueId id, bool wide);
  NodeId lower_wide(ValueId id);
  NodeId symbol(ValueId id);
  NodeId elementwise(ValueId id, bool wide);
  NodeId discrete(ValueId id);
  NodeId compare(ValueId id);
  NodeId read(ValueId id, bool wide);
  NodeId raw_score(double factor);

  NodeId integer_sum(ValueId id);
  NodeId multiple(NodeId a, std::int64_t factor);
  Sums sums_by_rank(const scoring::Linear& linear);
  NodeId total(std::initializer_list<NodeId> parts);

  bool holds_score(const scoring::Instr& instr) const;
  bool distributes(ValueId sum, double factor) const;
  NodeId scaled(ValueId id, double factor, int& budget);

  TapeNodes& nodes_;
  const scoring::Program& program_;
  base::IdVector<NodeId> narrow_, wide_;  ///< nodes of each value, in the tile's precision and in double; wide_ also integers of 64 bits
  base::IdVector<char> flags_;            ///< which integers are wide, see IntegerWidths
  base::IdVector<scoring::Linear> linear_;
  base::IdVector<char> holds_score_;
  const ValueId q_, kv_;  ///< q_idx and kv_idx, or -1
};

}  // namespace foveal::cpu
