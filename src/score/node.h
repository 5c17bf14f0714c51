#pragma once
// The node behind an Expr: immutable, typed, shared. Operands have been converted to the operand types of the operation.
#include <cstdint>
#include <memory>
#include <vector>

#include "foveal/score.h"
#include "score/ops.h"

namespace foveal::scoring {

struct Node {
  Op op{};
  Type type{};
  std::vector<std::shared_ptr<const Node>> args{};  ///< Op::read: the indices
  double real = 0;                                  ///< Op::real_const
  std::int64_t integer = 0;                         ///< Op::integer_const, Op::boolean_const
  std::shared_ptr<const Param::Info> param{};       ///< Op::read
  mutable std::shared_ptr<const Node> after{};      ///< next in the list of nodes being destroyed

  Node() = default;
  Node(Op op_, Type type_, std::vector<std::shared_ptr<const Node>> args_ = {}) : op(op_), type(type_), args(std::move(args_)) {}
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node();  // iterative: chains may be long
};

}  // namespace foveal::scoring
